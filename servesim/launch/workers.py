"""Servers of a deployment: a scenario taken apart into one command per pool, and put together again."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servesim.contracts.form import Deployment
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.launch.engine_command import EngineCommand, engine_command, words
from servesim.launch.flags import Flag
from servesim.run.presets import facts_of
from servesim.run.serve_command import served
from servesim.versions import engines

ONLY = "server"
"""Name of the servers of a scenario without pools."""
PORT = 8000
LISTEN = (Flag("host", "0.0.0.0"), Flag("port", str(PORT)))
IMAGES = {
    "vllm": "vllm/vllm-openai:v{}",
    "sglang": "lmsysorg/sglang:v{}",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:{}",
}
"""Published images by engine, for a version of it."""
V0 = "0.6.6"
"""Version of the image for vLLM's engine V0."""
_TAG = re.compile(r"(?:vllm/vllm-openai|lmsysorg/sglang|tensorrt-llm/release):v?(\d+(?:\.\d+)+)$")


@dataclass(frozen=True)
class Worker:
    """The servers of a pool, which all have the same command."""

    name: str
    """Name that Kubernetes accepts."""
    role: str
    scenario: Settings
    """Complete scenario of the pool."""
    command: EngineCommand

    @property
    def gpus(self) -> int:
        """Number of GPUs that the command uses."""
        return _gpus(served(self.command.text()).settings)

    @property
    def replicas(self) -> int:
        """Number of replicas at the start."""
        return int(self.scenario["replicas"])

    @property
    def image(self) -> str:
        """Image of the engine and its version; the newest known one if the scenario has none."""
        preset = self.scenario["preset"]
        version = facts_of(preset, self.scenario["engine"]["version"]).version if preset != "vllm-v0" else V0
        return IMAGES[self.command.engine].format(version)

    def start(self) -> list[str]:
        """Return the first words of the command, up to the model."""
        command = self.command.words()
        return command[: command.index(self.command.model)]

    def arguments(self, flags: Sequence[Flag] = LISTEN) -> list[str]:
        """Return the words after those of `start`, with further flags."""
        return [*self.command.words()[len(self.start()) :], *words(self.command.engine, flags)]

    def environment(self) -> dict[str, str]:
        """Return the variables of the command."""
        return {flag.name: flag.value for flag in self.command.variables}


def workers_of(scenario: Mapping[str, Any]) -> list[Worker]:
    """Return the servers of each pool of a complete scenario, or of the scenario itself. Raise UserError for an engine
    whose commands are not known."""
    base = {key: value for key, value in scenario.items() if key != "pools"}
    found: dict[str, Worker] = {}
    for pool in scenario.get("pools") or [{"name": ONLY, "role": "both"}]:
        own = base | {key: value for key, value in pool.items() if key not in ("name", "role")}
        name, number = plain_name(pool["name"]), 2
        while name in found:
            name, number = f"{plain_name(pool['name'])}-{number}", number + 1
        found[name] = Worker(name, pool["role"], own, engine_command(own))
    return [*found.values()]


def plain_name(text: str) -> str:
    """Return text as a name that Kubernetes and Compose accept."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:28].strip("-") or ONLY


def model_name(scenario: Mapping[str, Any]) -> str:
    """Return a name for a deployment after its model."""
    return plain_name(str(scenario["model"]).partition(":")[0].rpartition("/")[2].removesuffix(".json"))


@dataclass
class Read:
    """Servers of one pool, as read from a file."""

    name: str
    settings: Settings
    role: str = "both"
    unread: list[str] = field(default_factory=list)


def read_worker(
    name: str,
    container: Mapping[str, Any],
    replicas: Any = None,
    gpus: Any = None,
    starts: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Read | None:
    """Return the servers of a container, or None if it starts no known engine. `container`: image, command, args and
    env as in Kubernetes. `starts`: names of commands by their names in this form.
    `files`: texts of its files by path."""
    words = [*_texts(container.get("command")), *_texts(container.get("args"))]
    image, entry = str(container.get("image") or ""), _texts(container.get("command"))
    env = {str(one["name"]): str(one["value"]) for one in container.get("env") or () if "value" in one}
    if not words and not any(engine in image for engine in IMAGES):
        return None
    for there, here in (starts or {}).items():
        entry = [here if word == there else word for word in entry]
    given = [part for key, value in env.items() for part in ("-e", f"{key}={value}")]
    command = ["docker", "run", *given, *(["--entrypoint", shlex.join(entry)] if entry else []), image or "image"]
    try:
        found = served(shlex.join([*command, *_texts(container.get("args"))]), files)
    except UserError as error:
        if "must start with one of" in str(error) or "no command after it" in str(error):
            return None
        raise
    tag = _TAG.search(image)
    if tag is not None and found.settings["preset"] in engines():
        found.settings["engine"] = {**found.settings.get("engine", {}), "version": tag[1]}
    read = Read(name, found.settings, unread=list(found.unknown))
    _count(read, replicas, gpus)
    return read


def _texts(words: Any) -> list[str]:
    """Return the words of a command, given as a list or as one string."""
    if isinstance(words, str):
        return shlex.split(words)
    return [str(word) for word in words or ()]


def _count(read: Read, replicas: Any, gpus: Any) -> None:
    """Set the number of replicas; report a number of GPUs that differs from the command's."""
    settings, used = read.settings, _gpus(read.settings)
    if isinstance(replicas, int) and replicas > 0 and settings.get("replicas", 1) * replicas > 1:
        settings["replicas"] = settings.get("replicas", 1) * replicas
    if gpus is not None and str(gpus) != str(used):
        read.unread.append(f"{read.name}: {gpus} GPUs per replica, but the command uses {used}")


def _gpus(settings: Mapping[str, Any]) -> int:
    """Return the number of GPUs that the settings of a command use; ranks without experts are replicas."""
    return int(math.prod(settings.get(key, 1) for key in ("tp", "pp", "dp", "replicas")))


def assembled(reads: Iterable[Read], unread: Iterable[str] = (), router: Settings | None = None) -> Deployment:
    """Return the deployment of one server, or of several as pools. Raise UserError if there is none."""
    found = list(reads)
    if not found:
        raise UserError("no engine command found: no container starts vllm serve, sglang.launch_server or trtllm-serve")
    pools = [{"name": read.name, "role": read.role} | read.settings for read in found]
    settings: Settings = found[0].settings if len(found) == 1 and found[0].role == "both" else {"pools": pools}
    if "pools" in settings:
        settings["model"] = found[0].settings["model"]
    settings |= {"router": router} if router else {}
    return Deployment(settings, [*unread, *(text for read in found for text in read.unread)])


def refused_roles(scenario: Mapping[str, Any]) -> str:
    """Return why a form without separate prefill cannot hold a scenario, or an empty string."""
    if any(pool["role"] != "both" for pool in scenario.get("pools") or ()):
        return "prefill and decode apart need a form that connects them: dynamo or llm-d"
    return ""
