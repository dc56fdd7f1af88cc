"""Limits on what files from outside may contain, which the environment variable SERVESIM_LIMITS raises (or lowers):
`SERVESIM_LIMITS=rows=1e9,depth=500`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import lru_cache

from servesim.errors import UserError, shown

SETTING = "SERVESIM_LIMITS"


@dataclass(frozen=True)
class Limits:
    """Limits on the memory and size of a file's content, far above those of public traces and models."""

    bytes: int = 64 << 30
    """Bytes of a file of rows, uncompressed."""
    ratio: int = 100
    """Uncompressed bytes per compressed byte, of a file and of every 16 MiB within it. Traces in CSV or JSON have
    ratios of 3 to 20."""
    line: int = 64 << 20
    """Bytes of one line."""
    rows: int = 100_000_000
    """Requests of a trace, counting all samples."""
    samples: int = 16_384
    """Answers to one request; vLLM's default limit is the same (VLLM_MAX_N_SEQUENCES)."""
    document: int = 1 << 30
    """Bytes of a JSON document, which is read completely."""
    yaml: int = 8 << 20
    """Bytes of a YAML document."""
    nodes: int = 200_000
    """Values in a YAML document, with those behind an alias counted at each use."""
    depth: int = 100
    """Nesting depth of lists and objects."""
    columns: int = 2000
    """Maximum number of columns in a table, or of distinct keys in its rows."""
    stdin: int = 1 << 30
    """Maximum size in bytes of standard input, which is copied to a temporary file."""
    fetch: int = 4 << 30
    """Maximum size in bytes of a download of unknown size."""


def limits() -> Limits:
    """Return the limits in force; raise UserError if SERVESIM_LIMITS is not name=number,...."""
    return _parsed(os.environ.get(SETTING, ""))


@lru_cache(maxsize=8)
def _parsed(text: str) -> Limits:
    known = {field.name for field in fields(Limits)}
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if name not in known or not (1 <= number < 1 << 62 and number.is_integer()):
            raise UserError(
                f"{SETTING}: {shown(part)} must have the form NAME=WHOLE NUMBER; choose NAME from "
                f"{', '.join(sorted(known))}"
            )
        found[name] = int(number)
    return Limits(**found)


def too_much(where: object, what: str, name: str) -> UserError:
    """Return the error for an exceeded limit, which states how to raise it."""
    most: int = getattr(limits(), name)
    return UserError(f"{where}: {what} more than {most:,} (to allow it, set {SETTING}={name}=N)")
