"""Lists as written on a command line (comma-separated, non-empty values), and values as written in YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError


def listed(what: str, text: str) -> list[str]:
    """Return the parts of `text` between commas outside brackets, without surrounding blanks.

    Raise UserError, with a message that begins with `what`, if a part is empty or brackets do not match.
    """
    depth, parts = 0, [""]
    for char in text:
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    if depth != 0:
        raise UserError(f"{what}: brackets do not match in {text!r}")
    found = [part.strip() for part in parts]
    if not any(found):
        raise UserError(f"{what}: specify a value")
    if not all(found):
        raise UserError(f"{what}: {text!r} has a comma with no value next to it")
    return found


def policy_parts(text: str) -> tuple[str, str, str]:
    """Split `name:params` and `path/to/file.py:Class:params` into (name or file, class or "", params). The colon of a
    Windows drive (`C:\\x\\spf.py:Class`) belongs to the path, on any system."""
    path, py, rest = text.partition(".py:")
    if py:
        class_name, _, params = rest.partition(":")
        return f"{path}.py", class_name, params
    name, _, params = text.partition(":")
    return (text, "", "") if text.endswith(".py") else (name, "", params)


def names(what: str, text: str) -> list[str]:
    """Return a list without duplicates; raise UserError for a repeated name."""
    found = listed(what, text)
    for i, name in enumerate(found):
        if name in found[:i]:
            raise UserError(f"{what}: {name} is specified twice")
    return found


def whole_numbers(what: str, text: str) -> list[int]:
    """Return a list of distinct integers above 0."""
    found = names(what, text)
    for part in found:
        if not (part.isascii() and part.isdecimal() and 0 < len(part) <= 18 and int(part)):
            raise UserError(f"{what} {part}: must be whole numbers above 0, separated by commas")
    return [int(part) for part in found]


def pairs(what: str, text: str) -> dict[str, str]:
    """Return the values of `a=1,b=x` as strings, by key; return an empty mapping if the text is empty."""
    found: dict[str, str] = {}
    for part in listed(what, text) if text.strip() else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{what}: {part!r} must have the form key=value")
        if key.strip() in found:
            raise UserError(f"{what}: {key.strip()} is specified twice")
        found[key.strip()] = value.strip()
    return found


def spelt(value: Any) -> Any:
    """Return a YAML value with booleans as words, because pydantic also accepts `True` as the number 1, but "true" only
    as a boolean."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return [spelt(inner) for inner in value] if isinstance(value, list) else value


_CHANGES = re.compile(r":(?=[A-Za-z_][\w.]*=)")


def split_changes(text: str) -> tuple[str, dict[str, str]]:
    """Return the name in `name:key=value,...` and the changes after it, as strings by key: fields of a GPU's data sheet
    (`h100:usd_per_hour=2.2`) or of a model's config (`llama-3.1-8b:num_hidden_layers=4`)."""
    name, *rest = _CHANGES.split(text, maxsplit=1)
    return name, pairs(name, rest[0]) if rest else {}


def with_changes(base: Any, changes: Mapping[str, Any]) -> str:
    """Return a name, which may already have changes, with further changes appended; a mapping of changes is written as
    `a.b=value`."""
    name, known = split_changes(str(base))
    merged = known | {key: text for top, value in changes.items() for key, text in _flat(top, value)}
    return f"{name}:{','.join(f'{key}={text}' for key, text in merged.items())}" if merged else name


def _flat(key: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for inner, one in value.items() for pair in _flat(f"{key}.{inner}", one)]
    return [(key, "null" if value is None else str(spelt(value)))]
