"""Flags of engines that hold a scenario's settings: serve_flags.yaml, inverted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from servesim.errors import UserError
from servesim.hardware import ModelSpec
from servesim.run.flag_meanings import serve_flags

ONLY_IN_FILES = (
    "cuda-graph-config",
    "kv-cache-enable-block-reuse",
    "batch-wait-timeout-iters",
    "batch-wait-max-tokens-ratio",
)
"""Entries of the table that are keys of a file of flags, and no flags."""
PARALLEL = ("tp", "dp", "ep")


class Flag(NamedTuple):
    """A flag of a command, or a variable in front of it."""

    name: str
    value: str = ""
    """Empty for a switch."""
    is_variable: bool = False


def flags_for(engine: str, key: str, value: Any) -> Iterator[Flag]:
    """Yield the flags of an engine that set a dotted key to this value, in the table's order, then the variables."""
    for table in (engine, *(["environment"] if engine == "vllm" else [])):
        for name, meaning in serve_flags()[table].items():
            if name not in ONLY_IN_FILES:
                yield from _meant(name, meaning, key, value, table == "environment")


def _meant(name: str, meaning: Any, key: str, value: Any, is_variable: bool) -> Iterator[Flag]:
    if meaning == key and isinstance(value, bool):
        if value:
            yield Flag(name)
    elif meaning == key and value is not None:
        yield Flag(name, str(value), is_variable)
    elif isinstance(meaning, Mapping) and key in meaning:
        to = meaning[key]
        if isinstance(to, Mapping):
            yield from (Flag(name, text, is_variable) for text, means in to.items() if means == value is not None)
        elif to == value and type(to) is type(value):
            yield Flag(name)


def parallel(engine: str, settings: Mapping[str, Any]) -> list[Flag]:
    """Return the flags of tp, dp and ep: the inverse of how serve_command reads them. vLLM's tp is per rank; SGLang's
    and TensorRT-LLM's counts the GPUs of all ranks. Ranks of a model without experts are read as replicas."""
    tp, dp, ep = settings["tp"], settings["dp"], settings["ep"] or 1
    first = {key: next((flag.name for flag in flags_for(engine, key, 1)), "") for key in PARALLEL}
    found: list[Flag] = []
    experts = _has_experts(settings["model"])
    if dp > 1 and first["dp"]:
        found.append(Flag(first["dp"], str(dp)))
    if dp > 1 and experts and (engine != "trtllm" or tp == 1):
        tp = tp if engine == "vllm" else tp * dp
        attention = {"sglang": "enable-dp-attention", "trtllm": "enable-attention-dp"}
        found += [Flag(attention[engine])] if engine in attention else []
    if ep > 1 and engine != "vllm":
        found.append(Flag("ep-size", str(ep)))
    return [*([Flag(first["tp"], str(tp))] if tp > 1 else []), *found]


def _has_experts(model: str) -> bool:
    try:
        return ModelSpec.load(model).experts is not None
    except UserError:
        return False
