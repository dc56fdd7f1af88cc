"""vLLM's `--compilation-config` and `-O` as flags of one key each, such as
`--compilation-config.pass-config.fuse-allreduce-rms`, which vLLM accepts too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from servesim.errors import UserError, shown
from servesim.untrusted import json_value

CONFIG = "compilation-config"
LEVEL = "optimization-level"
_OTHER = re.compile(r"(?:cc|O)(?=\.|$)")
"""Short names of the configuration. `-O` with a JSON value is one in older versions."""


def by_key(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags in which each key of the compilation configuration is a flag of its own, and `-O3` is
    `--optimization-level 3` and first, since keys go over it. Raise UserError for a configuration that is not JSON."""
    found: dict[str, Any] = {}
    level: dict[str, Any] = {}
    for name, value in flags.items():
        if re.fullmatch(r"O\d", name) and not value:
            level[LEVEL] = name[1:]
        elif name == LEVEL or (name == "O" and str(value).isdecimal()):
            level[LEVEL] = value
        elif (full := _OTHER.sub(CONFIG, name, count=1)) == CONFIG:
            found |= _inner(CONFIG, _value(str(value)))
        else:
            found[full] = value
    return level | found


def _value(text: str) -> Mapping[str, Any]:
    """Return the value of `--compilation-config`: keys, or the level alone."""
    try:
        value = json_value(text)
    except ValueError:
        raise UserError(f"--serve: --{CONFIG} {shown(text)[:120]} is not JSON") from None
    if isinstance(value, int) and not isinstance(value, bool):
        return {"level": value}
    if not isinstance(value, Mapping):
        raise UserError(f"--serve: --{CONFIG} {shown(text)[:120]} must be a JSON object")
    return value


def _inner(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield one flag for each key of a value, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inner(f"{name}.{key.replace('_', '-')}", inner)
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)
