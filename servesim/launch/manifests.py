"""Parts that manifests of several forms share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servesim.contracts.section import Settings
from servesim.launch.workers import Worker

GPU = "nvidia.com/gpu"
TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}}
"""Variable with the Hugging Face token, from a secret that need not exist."""


def dumped(documents: Iterable[Any]) -> str:
    """Return YAML documents as one text."""
    import yaml

    return "---\n".join(yaml.dump(one, Dumper=_plain(), sort_keys=False, width=120) for one in documents)


def _plain() -> Any:
    """Return YAML's safe dumper without aliases."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Dumper that writes shared parts out each time."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    return Dumper


def engine_container(worker: Worker) -> Settings:
    """Return image, command and variables of an engine's container."""
    env = [{"name": name, "value": value} for name, value in worker.environment().items()]
    return {"image": worker.image, "command": worker.start(), "args": worker.arguments(), "env": [*env, TOKEN]}


def pod(containers: Sequence[Any], labels: Mapping[str, str], **more: Any) -> Settings:
    """Return the template of a pod."""
    return {"metadata": {"labels": dict(labels)}, "spec": {"containers": list(containers), **more}}


def main_of(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container of a workload's spec that asks for GPUs, or its first one; an empty mapping if it has
    none."""
    template = spec.get("template") or {}
    containers = (template.get("spec") or template).get("containers") or [{}]
    return next((one for one in containers if limit_of(one) is not None), containers[0])


def limit_of(container: Mapping[str, Any]) -> Any:
    """Return the number of GPUs that a container asks for, or None."""
    resources = container.get("resources") or {}
    return next((side[GPU] for key in ("limits", "requests") if GPU in (side := resources.get(key) or {})), None)


def config_map(name: str, texts: Mapping[str, str]) -> Settings:
    """Return the object that holds a container's files, by the last parts of their paths."""
    data = {path.rpartition("/")[2]: text for path, text in texts.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def mounts_of(name: str, paths: Iterable[str]) -> list[Settings]:
    """Return the mounts of single files of a volume."""
    return [{"name": name, "mountPath": path, "subPath": path.rpartition("/")[2]} for path in paths]


def files_of(spec: Mapping[str, Any], container: Mapping[str, Any], maps: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a container's files by path. `spec`: its workload; `maps`: data of the config maps by
    name."""
    volumes = ((spec.get("template") or {}).get("spec") or {}).get("volumes") or ()
    named = {str(one.get("name")): maps.get(str((one.get("configMap") or {}).get("name"))) or {} for one in volumes}
    found: dict[str, str] = {}
    for mount in container.get("volumeMounts") or ():
        data, path = named.get(str(mount.get("name"))) or {}, str(mount.get("mountPath"))
        part = mount.get("subPath")
        whole = {f"{path.rstrip('/')}/{key}": str(text) for key, text in data.items()}
        found |= ({path: str(data[part])} if part in data else {}) if part else whole
    return found
