"""Meanings of the flags of serving engines, from serve_flags.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from servesim.plugins.misspelled import ALIKE
from servesim.shipped import shipped_yaml

SIZES = {"tp": "tp", "tensor-parallel-size": "tp", "tp-size": "tp", "ep-size": "ep", "ep": "ep", "pp-size": "pp",
         "expert-parallel-size": "ep", "moe-expert-parallel-size": "ep"}  # fmt: skip
"""Flags for the number of GPUs in each parallel dimension; in tp and ep, SGLang and TensorRT-LLM count the GPUs of all
ranks."""
FILES = ("config", "extra-llm-api-options")


@cache
def serve_flags() -> dict[str, dict[str, Any]]:
    """Return the settings that flags correspond to, by engine; see serve_flags.yaml."""
    loaded: dict[str, dict[str, Any]] = shipped_yaml("servesim.run", "serve_flags.yaml")
    return loaded


def is_switch(meaning: Any) -> bool:
    """Return whether a flag takes no value."""
    return isinstance(meaning, Mapping) and not isinstance(next(iter(meaning.values())), Mapping)


def settings_of_flag(meaning: Any, value: str) -> dict[str, Any] | None:
    """Return the settings, by dotted key, of a flag with this value: empty for a flag without effect, None for a value
    that is not modeled. `meaning`: see serve_flags.yaml."""
    if meaning is None:
        return {}
    if isinstance(meaning, str):
        return {meaning: value or "true"}
    found: dict[str, Any] = {}
    for key, to in meaning.items():
        if not isinstance(to, Mapping):
            found |= {key: to} if value.lower() != "false" else {}
        elif value not in to:
            return None
        elif to[value] is not None:
            found[key] = to[value]
    return found


def settings_of(table: str, name: str, value: str) -> dict[str, Any] | None:
    """Return the settings, by dotted key, of a flag of an engine, as `settings_of_flag` does; those of `no-FLAG` are
    the opposite of a switch's. None also for an unknown flag."""
    meanings, positive = serve_flags()[table], name.removeprefix("no-")
    if name in meanings:
        return settings_of_flag(meanings[name], value)
    if positive in meanings and (meanings[positive] is None or is_switch(meanings[positive])):
        return {key: not to for key, to in (meanings[positive] or {}).items()}
    return None


def resembled(table: str, name: str) -> str:
    """Return the known flag of an engine that an unknown one resembles, or the only one that it begins; else an empty
    string. A key of a flag (`flag.key`) resembles only keys of that flag."""
    before, dot, last = name.rpartition(".")
    every = [*serve_flags()[table], *SIZES, *FILES, "speculative-config", "compilation-config"]
    known = [key for each in every if "." not in (key := each.removeprefix(before + dot)) and each.startswith(before)]
    begun = [each for each in known if each.startswith(last)]
    close = get_close_matches(last, known, 1, ALIKE) or begun[: len(begun) == 1]
    return before + dot + close[0] if close else ""
