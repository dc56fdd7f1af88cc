"""Conversion of commands that start a server into scenarios: `vllm serve MODEL --tensor-parallel-size 4 ...` and the
equivalents of SGLang and TensorRT-LLM. serve_flags.yaml lists the meaning of each flag.

A file of flags named in a command (`--config`, `--extra_llm_api_options`) is read; flags of the command override it. A
script may write the file first (`cat > FILE <<'END'`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from servesim.contracts.section import Settings
from servesim.contracts.warn import Warn
from servesim.errors import UserError, shown
from servesim.hardware import ModelSpec, model_named
from servesim.run.compilation_config import by_key
from servesim.run.container_command import unwrapped, written_files
from servesim.run.draft_flags import CONFIG, SGLANG, speculator_of, verifies
from servesim.run.flag_meanings import FILES, SIZES, is_switch, resembled, serve_flags, settings_of
from servesim.run.setting_names import override
from servesim.untrusted import parse_yaml, read_text, read_yaml

ENGINES = {
    "vllm": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "trtllm-serve": "trtllm",
    "sglang.launch_server": "sglang",
    "sglang": "sglang",
}
PRESETS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_EAGER = (
    "each kernel takes at least a launch of PyTorch's eager mode. Its time was derived from one model on one H100, and "
    "elsewhere it is accurate only to an order of magnitude"
)
_KERNELS = "attention is priced by the kernels measured for this engine and GPU, regardless of the backend"
_GRAPH_SIZES = (
    "steps are priced as CUDA graphs at every batch size, and padded, if at all, to vLLM's default sizes up to 512"
)
HINTS = {
    "attention-backend": _KERNELS,
    "prefill-attention-backend": _KERNELS,
    "decode-attention-backend": _KERNELS,
    "cuda-graph-max-bs": "decode steps are priced as CUDA graphs at every batch size",
    "enable-torch-compile": (
        "priced by the kernels measured without it. SGLang compiles only batches of up to torch_compile_max_bs (32)"
    ),
    "enforce-eager": _EAGER,
    "disable-cuda-graph": _EAGER,
    "compilation-config.cudagraph-mode NONE": _EAGER,
    "compilation-config.use-cudagraph false": _EAGER,
    "optimization-level 0": _EAGER,
    "cuda-graph-config null": _EAGER,
    "compilation-config.cudagraph-capture-sizes": _GRAPH_SIZES,
    "compilation-config.max-cudagraph-capture-size": _GRAPH_SIZES,
    "cuda-graph-sizes": _GRAPH_SIZES,
    "VLLM_FLOAT32_MATMUL_PRECISION medium": "priced like high: PyTorch lets cuBLAS use TF32 under both",
}
"""Hints on flags that change more than their setting, or something else; some only with a value."""
_SUFFIXES = {"k": 1000, "K": 1 << 10, "m": 1_000_000, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SKIPPED = ("python3", "python", "-m", "exec", "sudo", "nohup", "env")
EXAMPLE = "for example: vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2"
Flags = tuple[tuple[str, str], ...]


@dataclass
class Served:
    """A command converted to settings, and its flags that do not correspond to settings."""

    settings: Settings
    nothing: list[str] = field(default_factory=list)
    """Flags without effect here."""
    unknown: list[str] = field(default_factory=list)
    """Flags that are not modeled."""
    hints: list[str] = field(default_factory=list)
    """Hints on flags that are modeled in part or not at all."""
    drafts: list[str] = field(default_factory=list)
    """Flags of the speculator."""

    def simulated(self) -> Served:
        """Return the command without drafts that the scheduler of its engine does not verify here."""
        if not self.drafts or verifies(self.settings):
            return self
        settings = {key: value for key, value in self.settings.items() if key != "speculation"}
        return replace(self, settings=settings, unknown=[*self.unknown, *self.drafts], drafts=[])

    def notes(self) -> list[str]:
        """Return notes on the flags that are not modeled, have no effect, or are modeled only in part."""
        unknown = f"--serve: flags that are NOT MODELED and have no effect: {', '.join(self.unknown)}"
        nothing = f"--serve: flags that have no effect here: {', '.join(self.nothing)}"
        notes = [*([Warn(unknown)] if self.unknown else ()), *([nothing] if self.nothing else ())]
        return notes + [f"--serve: {hint}" for hint in self.hints]


def parsed(command: str) -> tuple[str, str, Flags]:
    """Return (engine, model, flags) of a command; flags by name with hyphens, sorted, with their values or an empty
    string."""
    words = _words(command)
    words = words[len(environment(command)) :]
    program = words[0].rpartition("/")[2] if words else ""
    engine = ENGINES.get(program, program)
    switches = {name for name, meaning in serve_flags().get(engine, {}).items() if is_switch(meaning)}
    model, flags, rest = "", {}, words[1:]
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            if not equals and rest and not _is_flag(rest[0]) and (name not in switches or _is_boolean(rest[0])):
                value = rest.pop(0)
            flags[name] = value
        elif word != "serve":
            model = model or word
    named = [flags.pop(name) for name in ("model-path", "model") if name in flags]
    return engine, (model or (named[0] if named else "")).removeprefix("/workspace/"), tuple(sorted(flags.items()))


def environment(command: str) -> list[tuple[str, str]]:
    """Return the environment variables that are set in front of a command, with their values."""
    assigned = takewhile(_VARIABLE.fullmatch, _words(command))
    return [(name, value) for name, _, value in (word.partition("=") for word in assigned)]


def _words(command: str) -> list[str]:
    """Return the words of a command, without those before the server's name that are not variables."""
    words = unwrapped(shlex.split(command.replace("\\\n", " ")))
    before = len([*takewhile(lambda word: word in _SKIPPED or _VARIABLE.fullmatch(word), words)])
    return [word for word in words[:before] if word not in _SKIPPED] + words[before:]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _is_boolean(word: str) -> bool:
    return word.lower() in ("true", "false")


def served(command: str, files: Mapping[str, str] | None = None) -> Served:
    """Return the scenario settings of a command, or of the command in a file (`@file`); raise UserError if it does not
    start a known server. `files`: texts by name of files of flags that are not read from disk."""
    given = read_text(Path(command[1:]), "yaml") if command.startswith("@") else command
    text, own = written_files(given)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        engine, model, flags = parsed("\n".join(lines))
        variables = environment("\n".join(lines))
    except ValueError as error:
        raise UserError(f"--serve {shown(text)[:120]}: not a command line: {error}") from error
    if engine not in PRESETS:
        raise UserError(
            f"--serve {shown(text)[:80]}: must start with one of vllm serve, vllm.entrypoints.openai.api_server, "
            f"sglang.launch_server, trtllm-serve; {EXAMPLE}"
        )
    every = {
        **_of_files(flags, {**(files or {}), **own}),
        **{name: value for name, value in flags if name not in FILES},
    }
    model = model or str(every.pop("model", ""))
    every.pop("model", None)
    every = by_key(every) if engine == "vllm" else every
    if not model:
        raise UserError(f"--serve {shown(text)[:120]}: has no model; {EXAMPLE}")
    found = Served({"preset": PRESETS[engine], "model": _model(model)})
    dotted: dict[str, Any] = {}
    for name, value in variables:
        if hint := HINTS.get(f"{name} {value}"):
            found.hints.append(f"{name}={value}: {hint}")
        if engine == "vllm" or not name.startswith("VLLM_"):
            dotted |= _known("environment", name, value, f"{name}={value}", found)
        else:
            found.nothing.append(f"{name}={value}")
    found.settings["preset"] = dotted.pop("preset", None) or found.settings["preset"]
    drafted = speculator_of(engine, every)
    if drafted is not None:
        dotted["speculation"], names = drafted
        found.drafts = [f"--{name} {every.pop(name)}".strip() for name in names]
    for name, value in every.items():
        dotted |= _settings(engine, name, str(value), found)
    _experts(engine, every, dotted, found)
    found.settings = override(found.settings, [f"{key}={value}" for key, value in dotted.items()])
    return found


def _of_files(flags: Flags, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags in the files that a command names; `files`: those at hand, by name."""
    found: dict[str, Any] = {}
    for name, value in flags:
        if name in FILES:
            where = f"--serve: --{name}"
            loaded = parse_yaml(files[value], where) if value in files else read_yaml(Path(value), where)
            if not isinstance(loaded, Mapping):
                raise UserError(f"--serve: --{name} {value}: not a mapping of flags to values")
            if isinstance(cache := loaded.get("kv_cache_config"), Mapping):  # TensorRT-LLM's
                loaded = {key: inner for key, inner in loaded.items() if key != "kv_cache_config"}
                loaded |= {f"kv_cache_{key}": inner for key, inner in cache.items()}
            if "cuda_graph_config" in loaded:  # TensorRT-LLM's, on by default
                graphs = "null" if loaded["cuda_graph_config"] is None else "given"
                loaded = {**loaded, "cuda_graph_config": graphs}
            found |= {str(key).replace("_", "-"): _text(inner) for key, inner in loaded.items() if inner is not None}
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)


def _model(name: str) -> str:
    """Return a model as a scenario names it: a folder unchanged, a known name in full, or the last part of any other
    path."""
    if Path(name).exists() or model_named(name) is not None:
        return name
    return name.rstrip("/").rpartition("/")[2] if name.count("/") > 1 or name.startswith("/") else name


def _settings(engine: str, name: str, value: str, found: Served) -> dict[str, Any]:
    """Return the settings of a flag, and record the flag if it has none."""
    written = f"--{name} {value}".strip()
    if name in (CONFIG, *SGLANG):  # of drafts that are not modeled
        found.unknown.append(written)
        return {}
    if SIZES.get(name) == "ep":
        return {}
    if hint := HINTS.get(name) or HINTS.get(f"{name} {value}"):
        found.hints.append(f"--{name}: {hint}")
    return _known(engine, name, _number(value), written, found)


def _known(table: str, name: str, value: str, written: str, found: Served) -> dict[str, Any]:
    """Return the settings of an entry of serve_flags.yaml, and record it as `written` if it has none."""
    settings = settings_of(table, name, value)
    if settings is None and name not in serve_flags()[table] and (close := resembled(table, name)):
        written += f" (did you mean {'--' if written.startswith('--') else ''}{close}?)"
    if settings is None:
        found.unknown.append(written)
    elif not settings:
        found.nothing.append(written)
    return settings or {}


def _number(value: str) -> str:
    """Return 32000 for `32k` and 32768 for `32K`, as in vLLM, and auto for -1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])", value)
    return str(int(float(match[1]) * _SUFFIXES[match[2]])) if match else value


def _size(name: str, value: object) -> int:
    """Return a number of GPUs or ranks."""
    value = str(value)
    if not re.fullmatch(r"[1-9]\d{0,5}", value):
        raise UserError(f"--serve: {name} is {shown(value)} but must be a positive integer")
    return int(value)


def _experts(engine: str, flags: Mapping[str, Any], dotted: dict[str, Any], found: Served) -> None:
    """Set the distribution of experts and the meaning of data-parallel ranks: in a model with experts, ranks run their
    steps together; in a model without experts, each rank is a replica. vLLM's tp is per rank; SGLang's and
    TensorRT-LLM's counts the GPUs of all ranks."""
    try:
        experts = ModelSpec.load(found.settings["model"]).experts is not None
    except UserError:  # reported by the run
        experts = False
    trt = str(flags.get("enable-attention-dp", "false")).lower()
    attention_dp = "enable-dp-attention" in flags or trt in ("true", "")
    tp, dp = _size("tp", dotted.get("tp", 1)), _size("dp", dotted.get("dp", 1))
    if engine == "trtllm" and attention_dp and experts:
        dp = tp
    if engine == "trtllm" and attention_dp:  # PyExecutor holds no prompts back then
        dotted.pop("scheduler.batch_wait_timeout_iters", None)
    ep = next((_size("ep", value) for name, value in flags.items() if SIZES.get(name) == "ep"), 1)
    if dp > 1 and experts and (engine == "vllm" or attention_dp):
        if engine != "vllm":
            if tp % dp:
                raise UserError(f"--serve: tp {tp} is not a multiple of the {dp} data-parallel ranks of attention")
            dotted["tp"] = tp // dp
        dotted["dp"] = dp
    elif dp > 1:
        dotted.pop("dp", None)
        dotted["replicas"] = dp
    if ep > 1:
        dotted["ep"] = ep


def merged(settings: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Return settings overridden by others, with sections merged key by key."""
    both = {k: {**settings[k], **v} for k, v in over.items() if isinstance(v, Mapping) and _is_section(settings, k)}
    return {**settings, **over, **both}


def _is_section(settings: Mapping[str, Any], key: str) -> bool:
    return key in ("engine", "clients") and isinstance(settings.get(key), Mapping)


def commands(given: Any) -> list[Served]:
    """Return the one or more commands given by command-line options."""
    texts: Sequence[str] = [given] if isinstance(given, str) else given or ()
    return [served(text) for text in texts]
