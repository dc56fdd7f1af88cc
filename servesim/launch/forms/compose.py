"""Form `compose`: Docker Compose, one service per replica, each with GPUs of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.form import Deployment, Form, forms
from servesim.contracts.section import Settings
from servesim.launch.manifests import dumped
from servesim.launch.routers import read_router, router_command
from servesim.launch.workers import PORT, Read, Worker, assembled, model_name, read_worker, refused_roles, workers_of

MOST_GPUS = 16
"""Largest number of GPUs of one host. With more, a service has several replicas."""
_REPLICA = re.compile(r"-r\d+$")


@forms.register("compose")
class ComposeForm(Form):
    """Services of one host. A router, if its program is known, is the service that is published."""

    def refusal(self, scenario: Mapping[str, Any]) -> str:
        return refused_roles(scenario)

    def files(self, scenario: Mapping[str, Any]) -> dict[str, str]:
        workers = workers_of(scenario)
        each = sum(worker.gpus * worker.replicas for worker in workers) <= MOST_GPUS
        services: Settings = {}
        configs: Settings = {}
        first = 0
        for worker in workers:
            configs |= {
                f"{worker.name}-options": {"content": text.replace("$", "$$")}
                for text in worker.command.files().values()
            }
            names = [f"{worker.name}-r{i}" for i in range(worker.replicas)] if each else [worker.name]
            for name in names:
                services[name] = _service(worker, range(first, first + worker.gpus) if each else None)
                first += worker.gpus
        targets = ["--worker-urls", *(f"http://{name}:{PORT}" for name in services)]
        routed = router_command(scenario["router"], targets)
        if routed is not None:
            image, command = routed
            services["router"] = {"image": image, "entrypoint": command, "depends_on": [*services], "ports": _port(0)}
        else:
            for number, service in enumerate(services.values()):
                service["ports"] = _port(number)
        top = {"name": model_name(scenario), "services": services} | ({"configs": configs} if configs else {})
        return {"compose.yaml": dumped([top])}

    def recognizes(self, documents: Sequence[Any]) -> bool:
        return (
            len(documents) == 1 and isinstance(documents[0], Mapping) and isinstance(_services(documents[0]), Mapping)
        )

    def deployment(self, documents: Sequence[Any]) -> Deployment:
        reads: dict[str, Read] = {}
        router, unread = None, []
        for name, service in _services(documents[0]).items():
            container = _container(service)
            deploy = service.get("deploy") or {}
            read = read_worker(
                _REPLICA.sub("", str(name)),
                container,
                deploy.get("replicas", 1),
                _gpus(deploy),
                files=_files(service, documents[0].get("configs") or {}),
            )
            routed = read_router([*container["command"], *container["args"]])
            router = routed or router
            if read is None and routed is None:
                unread.append(f"service {name}")
            elif read is not None and (same := reads.get(read.name)) and _settings(same) == _settings(read):
                same.settings["replicas"] = same.settings.get("replicas", 1) + read.settings.get("replicas", 1)
            elif read is not None:
                reads[read.name if read.name not in reads else str(name)] = read
        return assembled(reads.values(), unread, router)


def _settings(read: Read) -> Settings:
    return {key: value for key, value in read.settings.items() if key != "replicas"}


def _services(document: Mapping[str, Any]) -> Any:
    return document.get("services")


def _port(number: int) -> list[str]:
    return [f"{PORT + number}:{PORT}"]


def _service(worker: Worker, devices: range | None) -> Settings:
    """Return the service of a replica with these GPUs, or of all replicas."""
    chosen: Settings = {"device_ids": [str(i) for i in devices]} if devices is not None else {"count": worker.gpus}
    reservation = {"devices": [{**chosen, "capabilities": ["gpu"]}]}
    deploy = {"replicas": worker.replicas} if devices is None else {}
    environment = {name: value.replace("$", "$$") for name, value in worker.environment().items()}
    configs = [{"source": f"{worker.name}-options", "target": path} for path in worker.command.files()]
    return {
        "image": worker.image,
        "entrypoint": worker.start(),
        "command": [word.replace("$", "$$") for word in worker.arguments()],
        "environment": environment | {"HF_TOKEN": "${HF_TOKEN:-}"},
        **({"configs": configs} if configs else {}),
        "ipc": "host",
        "deploy": {**deploy, "resources": {"reservations": reservation}},
    }


def _files(service: Mapping[str, Any], configs: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a service's files by path, of those that are in the document."""
    given = [one if isinstance(one, Mapping) else {"source": one} for one in service.get("configs") or ()]
    named = {str(one.get("target") or f"/{one['source']}"): configs.get(one["source"]) or {} for one in given}
    return {path: _plain(str(config["content"])) for path, config in named.items() if "content" in config}


def _container(service: Mapping[str, Any]) -> Settings:
    """Return a service as a container of Kubernetes."""
    given = service.get("environment") or {}
    pairs = given.items() if isinstance(given, Mapping) else [str(one).partition("=")[::2] for one in given]
    env = [{"name": name, "value": _plain(str(value))} for name, value in pairs if value is not None]
    words = {"command": service.get("entrypoint"), "args": service.get("command")}
    texts = {key: _words(value) for key, value in words.items()}
    return {"image": service.get("image"), "env": env, **texts}


def _words(words: Any) -> list[str]:
    listed = shlex.split(words) if isinstance(words, str) else words or ()
    return [_plain(str(word)) for word in listed]


def _plain(text: str) -> str:
    return text.replace("$$", "$")


def _gpus(deploy: Mapping[str, Any]) -> int | None:
    """Return the number of GPUs that a service reserves, or None."""
    reserved = ((deploy.get("resources") or {}).get("reservations") or {}).get("devices") or ()
    counts = [len(one["device_ids"]) if "device_ids" in one else one.get("count") for one in reserved]
    return sum(counts) if counts and all(isinstance(count, int) for count in counts) else None
