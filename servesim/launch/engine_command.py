"""Commands that start an engine under a scenario's settings: the inverse of servesim.run.serve_command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.launch.difference import changed, lost_of, whole
from servesim.launch.drafts import OPTIONS, draft_flags, draft_of, draft_options
from servesim.launch.flags import PARALLEL, Flag, flags_for, parallel
from servesim.run.beside import POLICIES
from servesim.run.sections import yaml_value
from servesim.run.serve_command import PRESETS, served
from servesim.shipped import shipped_yaml

STARTS = {
    "vllm": ("vllm", "serve"),
    "sglang": ("python", "-m", "sglang.launch_server", "--model-path"),
    "trtllm": ("trtllm-serve",),
}
"""Words before the model."""
ENGINES = {None: "vllm", "vllm-v0": "vllm"} | {preset: engine for engine, preset in PRESETS.items()}
"""Engines by preset."""
_ROUNDS = 4


@dataclass(frozen=True)
class Written:
    """A command, and the settings that it cannot hold."""

    text: str
    lost: dict[str, Any] = field(default_factory=dict)
    """Settings by dotted key."""


@dataclass(frozen=True)
class EngineCommand:
    """A command in parts."""

    engine: str
    model: str
    variables: tuple[Flag, ...]
    flags: tuple[Flag, ...]
    options: Settings = field(default_factory=dict)
    """Contents of the file that the flags name, TensorRT-LLM's `--extra_llm_api_options`; empty for none."""

    def words(self) -> list[str]:
        """Return the words of the command, without variables."""
        return [*STARTS[self.engine], self.model, *words(self.engine, self.flags)]

    def files(self) -> dict[str, str]:
        """Return the texts of the files that the command reads, by path."""
        import yaml

        return {OPTIONS: yaml.safe_dump(self.options, sort_keys=False)} if self.options else {}

    def text(self) -> str:
        """Return the command as a line for a shell, after lines that write its file, if it reads one."""
        variables = [f"{flag.name}={flag.value}" for flag in self.variables]
        written = [f"cat > {name} <<'END'\n{text}END\n" for name, text in self.files().items()]
        return "".join([*written, shlex.join([*variables, *self.words()])])


def words(engine: str, flags: Sequence[Flag]) -> list[str]:
    """Return flags as words; TensorRT-LLM's have underscores."""
    found: list[str] = []
    for flag in flags:
        name = flag.name.replace("-", "_") if engine == "trtllm" else flag.name
        found += [f"--{name}", *([flag.value] if flag.value else [])]
    return found


def command(settings: Mapping[str, Any]) -> Written:
    """Return the command that starts a scenario's engine; settings equal to the engine's defaults are not written.
    Raise UserError for an engine whose commands are not known, or several pools."""
    if whole(settings).get("pools"):
        raise UserError("command: one command holds no pools; forms that hold them: dynamo, llm-d, kubernetes, compose")
    text = engine_command(settings).text()
    return Written(text, lost_of(settings, served(text).settings))


@cache
def checkpoints() -> dict[str, str]:
    """Return the checkpoint that each bundled model stands for, as checkpoints.yaml lists them."""
    loaded: dict[str, str] = shipped_yaml("servesim.launch", "checkpoints.yaml")
    return loaded


def engine_command(settings: Mapping[str, Any]) -> EngineCommand:
    """Return the command of a scenario without pools, with the flags that are read back as its settings. Raise
    UserError for an engine whose commands are not known."""
    want = _typed(whole(settings))
    engine = ENGINES.get(want["preset"])
    if engine is None:
        known = ", ".join(str(preset) for preset in ENGINES if preset)
        raise UserError(f"preset {want['preset']}: no command of this engine is known, only of {known}")
    model = str(checkpoints().get(want["model"].lower(), want["model"]))
    speculator = want["speculation"]
    draft = draft_of(model, speculator, checkpoints())
    options = draft_options(engine, speculator, draft)
    files = [Flag("extra-llm-api-options", OPTIONS)] if options else []
    written = {"tp": parallel(engine, want), "speculation": [*draft_flags(engine, speculator, draft), *files]}
    tried: set[Flag] = set()
    for _ in range(_ROUNDS):
        missing = _missing(want, _command(engine, model, written, options))
        if "preset" in missing and want["preset"] is not None:  # it sets defaults of the others
            missing = {"preset": missing["preset"]}
        fresh = {key: flag for key, value in missing.items() if (flag := _fresh(engine, key, value, tried))}
        dropped = [key for key in written if key in missing and key not in fresh and key not in ("tp", "speculation")]
        written = {key: flags for key, flags in written.items() if key not in dropped}
        written |= {key: [flag] for key, flag in fresh.items()}
        tried |= {*fresh.values()}
        if not fresh and not dropped:
            break
    return _command(engine, model, written, options)


def _fresh(engine: str, key: str, value: Any, tried: set[Flag]) -> Flag | None:
    return None if key in PARALLEL else next((f for f in flags_for(engine, key, value) if f not in tried), None)


def _command(engine: str, model: str, written: Mapping[str, Sequence[Flag]], options: Settings) -> EngineCommand:
    flags = [flag for group in written.values() for flag in group]
    variables = tuple(flag for flag in flags if flag.is_variable)
    return EngineCommand(engine, model, variables, tuple(flag for flag in flags if not flag.is_variable), options)


def _missing(want: Mapping[str, Any], written: EngineCommand) -> Settings:
    """Return the settings that the command does not set as wanted; an allocator is its name."""
    read = served(written.text()).settings
    given = {key: want[key] for key in ("trace", "gpu")}
    found = changed({**want, "features": [], "pools": []}, _typed(whole(read | given)))
    name = found.get("kv", {}).get("name")
    return found | ({"kv": name} if name else {})


def _typed(scenario: Settings) -> Settings:
    """Return a scenario in which parameters of policies have their types, whether or not they were written as text."""
    typed = {
        key: {name: yaml_value(name, value) if isinstance(value, str) else value for name, value in policy.items()}
        for key, policy in scenario.items()
        if key in POLICIES and isinstance(policy, Mapping)
    }
    return scenario | typed
