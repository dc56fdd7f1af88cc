"""Values as YAML in one line, for the comment that carries settings in a written file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError
from servesim.run.sections import yaml_value

MARK = "# servesim:"
_PLAIN = re.compile(r"[A-Za-z0-9_./:+-]*[A-Za-z0-9_./+-]")
_COMMENT = re.compile(rf"^[ \t]*{MARK}(.*)$", re.MULTILINE)
_VERSION = "engine.version"


def comment(lost: Mapping[str, Any]) -> str:
    """Return the comment line of these settings, or an empty string if there are none."""
    if not lost:
        return ""
    texts = (f"{key}={value if _is_version(key, value) else flow(value)}" for key, value in lost.items())
    return f"{MARK} {' '.join(shlex.quote(text) for text in texts)}\n"


def commented(text: str) -> dict[str, Any]:
    """Return the settings in the comment lines of a file; raise UserError if one is malformed."""
    found: dict[str, Any] = {}
    for line in _COMMENT.findall(text):
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UserError(f"{MARK} {line.strip()[:80]}: {error}") from error
        for word in words:
            key, equals, value = word.partition("=")
            if not equals:
                raise UserError(f"{MARK} {word[:80]}: must have the form key=value")
            version = key.endswith(_VERSION) and value != "null"
            found[key] = value if version else yaml_value(f"{MARK} {key}", value)
    return found


def _is_version(key: str, value: Any) -> bool:
    """Return whether a value is a version, which stays text: 0.30 is not 0.3."""
    return key.endswith(_VERSION) and isinstance(value, str)


def flow(value: Any) -> str:
    """Return a value as YAML in one line, which is read back as the same value of the same type."""
    import yaml

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) is not None and yaml.safe_load(value) == value
        return value if plain and value != "-" else _quoted(value)
    text: str = yaml.safe_dump(value).removesuffix("...\n").strip()
    return text


def _quoted(text: str) -> str:
    """Return text in double quotes; characters that YAML or a line cannot hold are escaped."""
    return "".join(
        char if char.isprintable() else f"\\U{ord(char):08x}" for char in json.dumps(text, ensure_ascii=False)
    )
