"""Values as YAML in one line, for the comment that carries settings in a written file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from servesim.run.deployment_file import MARK, VERSION

_PLAIN = re.compile(r"[A-Za-z0-9_./]([A-Za-z0-9_./:=+-]*[A-Za-z0-9_/])?")


def comment(lost: Mapping[str, Any]) -> str:
    """Return the comment line of these settings, or an empty string if there are none."""
    if not lost:
        return ""
    texts = (f"{key}={value if _is_version(key, value) else flow(value)}" for key, value in lost.items())
    return f"{MARK} {' '.join(shlex.quote(text) for text in texts)}\n"


def _is_version(key: str, value: Any) -> bool:
    """Return whether a value is a version, which stays text: 0.30 is not 0.3."""
    return key.endswith(VERSION) and isinstance(value, str)


def flow(value: Any) -> str:
    """Return a value as YAML in one line, which is read back as the same value of the same type."""
    import yaml

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
        return value if plain else _quoted(value)
    text: str = yaml.safe_dump(value).removesuffix("...\n").strip()
    return text


def _quoted(text: str) -> str:
    """Return text in double quotes; characters that YAML or a line cannot hold are escaped."""
    return "".join(
        char if char.isprintable() else f"\\U{ord(char):08x}" for char in json.dumps(text, ensure_ascii=False)
    )
