"""Form `kubernetes`: a Deployment per pool, and a Service, a router and an autoscaler around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.form import Deployment, Form, forms
from servesim.contracts.section import Settings
from servesim.launch.manifests import (
    GPU,
    config_map,
    dumped,
    engine_container,
    files_of,
    limit_of,
    main_of,
    mounts_of,
    pod,
)
from servesim.launch.routers import read_router, router_command
from servesim.launch.scalers import READERS, VARIANT, read_scaler, scaler_objects
from servesim.launch.workers import PORT, Worker, assembled, model_name, read_worker, refused_roles, workers_of


@forms.register("kubernetes")
class KubernetesForm(Form):
    """Manifests for a plain cluster with NVIDIA's device plug-in. Its Service spreads requests over the replicas."""

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        return refused_roles(scenario)

    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        name, found = model_name(scenario), []
        workers = workers_of(scenario)
        for worker in workers:
            own = f"{name}-{worker.name}"
            found.append(_deployment(own, worker, name))
            files = worker.command.files()
            found += [config_map(f"{own}-options", files)] if files else []
            found += scaler_objects(worker, own)
        routed = router_command(scenario["router"], ["--service-discovery", "--selector", f"serves={name}",
                                                     "--service-discovery-port", str(PORT)])  # fmt: skip
        if routed is not None:
            found += _router(name, *routed)
        selector = {"app": f"{name}-router"} if routed is not None else {"serves": name}
        found.append(_service(name, selector))
        return {"kubernetes.yaml": dumped(found)}

    def recognizes(self, documents: Sequence[Any]) -> bool:
        return any(isinstance(one, Mapping) and one.get("kind") in ("Deployment", "StatefulSet") for one in documents)

    def deployment(self, documents: Sequence[Any]) -> Deployment:
        reads, unread, router = [], [], None
        scaled = {_target(one): read_scaler(kind, one["spec"]) for one in documents if (kind := _kind(one)) in READERS}
        maps = {one["metadata"]["name"]: one.get("data") or {} for one in documents if _kind(one) == "ConfigMap"}
        for one in documents:
            kind = _kind(one)
            name = str((one.get("metadata") or {}).get("name", "server")) if isinstance(one, Mapping) else ""
            if kind in ("Deployment", "StatefulSet"):
                spec = one.get("spec") or {}
                container = main_of(spec)
                label = ((spec.get("template") or {}).get("metadata") or {}).get("labels", {}).get("pool", name)
                files = files_of(spec, container, maps)
                read = read_worker(str(label), container, spec.get("replicas", 1), limit_of(container), files=files)
                router = read_router([str(word) for word in container.get("command") or ()]) or router
                if read is not None:
                    scaler, more = scaled.get(name, (None, []))
                    read.settings |= {"scaler": scaler} if scaler is not None else {}
                    read.unread += more
                    reads.append(read)
                elif read_router([str(word) for word in container.get("command") or ()]) is None:
                    unread.append(f"{kind} {name}")
            elif kind not in _AROUND and not (kind == "ConfigMap" and name.endswith("-options")):
                unread.append(f"{kind} {name}".strip())
        return assembled(reads, unread, router)


_AROUND = (*READERS, VARIANT, "Service", "ServiceAccount", "Role", "RoleBinding", "Secret", "Namespace")
"""Kinds that change nothing here, or are read with others."""


def _kind(document: Any) -> str:
    return str(document.get("kind")) if isinstance(document, Mapping) else type(document).__name__


def _target(document: Mapping[str, Any]) -> str:
    return str((document["spec"].get("scaleTargetRef") or {}).get("name"))


def _deployment(name: str, worker: Worker, serves: str) -> Settings:
    labels = {"app": name, "serves": serves, "pool": worker.name}
    probe = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10, "failureThreshold": 360}
    files, options = worker.command.files(), f"{name}-options"
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    volumes += [{"name": "options", "configMap": {"name": options}}] if files else []
    container = {
        "name": "engine",
        **engine_container(worker),
        "ports": [{"containerPort": PORT}],
        "readinessProbe": probe,
        "resources": {"limits": {GPU: str(worker.gpus)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *mounts_of("options", files)],
    }
    template = pod([container], labels, volumes=volumes)
    spec = {"replicas": worker.replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _service(name: str, selector: Mapping[str, str]) -> Settings:
    spec = {"selector": dict(selector), "ports": [{"port": PORT, "targetPort": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _router(serves: str, image: str, command: Sequence[str]) -> list[Settings]:
    """Return the router's Deployment, and its permission to find the servers' pods."""
    name = f"{serves}-router"
    container = {"name": "router", "image": image, "command": list(command), "ports": [{"containerPort": PORT}]}
    template = pod([container], {"app": name}, serviceAccountName=name)
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    meta, group = {"name": name}, "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    binding = {
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": dict(meta), "rules": rules},
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": dict(meta), **binding},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": dict(meta), "spec": spec},
    ]
