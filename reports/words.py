"""Numbers in readable form."""

from __future__ import annotations

import re
from pathlib import PurePath

from servesim.errors import one_line
from servesim.metrics.words import number, percent

__all__ = ["count", "gpu_of", "name_of", "number", "percent", "seconds", "shortened", "time_ms", "wrapped"]


def name_of(file_or_name: str) -> str:
    """Return the name of a model or GPU without its path; for a file, use the file's name (for a `config.json`, its
    folder's)."""
    path = PurePath(file_or_name)
    if path.suffix not in (".json", ".yaml", ".yml"):
        return path.name
    return path.parent.name if path.stem == "config" and path.parent.name else path.stem


def gpu_of(file_or_name: str) -> str:
    """Return the name of a GPU, with known ones in capitals."""
    name = name_of(file_or_name)
    return name.upper() if name == file_or_name else name


def time_ms(ms: float | None) -> str:
    """Format a time in milliseconds if it is below one second, and in seconds otherwise."""
    if ms is None:
        return "–"
    if ms < 1000:
        return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"
    return seconds(ms / 1e3)


def seconds(s: float) -> str:
    """Format a time in seconds, in minutes from ten minutes up, and in hours from two hours up."""
    if s >= 7200:
        return f"{s / 3600:,.1f} h"
    if s >= 600:
        return f"{s / 60:,.1f} min"
    return f"{s:.0f} s" if s >= 100 else f"{s:.1f} s" if s >= 10 else f"{s:.2f} s"


def count(value: float) -> str:
    """Format a count with thousands separators, or in millions from ten million up."""
    return f"{value / 1e6:,.1f} M" if abs(value) >= 1e7 else f"{value:,.0f}"


def shortened(name: str, most: int = 40) -> str:
    """Return a user-supplied name (of a tenant or label) as one line of at most `most` characters, without its
    middle if it is longer."""
    line = one_line(name)
    return line if len(line) <= most else f"{line[: most // 2]}…{line[len(line) - (most - 1) // 2 :]}"


def wrapped(name: str, most: int, lines: int = 3) -> str:
    """Return a name in at most `lines` lines of at most `most` characters, broken after separators where possible, and
    without its middle if it is longer."""
    size = len(one_line(name))
    while True:
        found = [""]
        for part in re.findall(rf"[^ /:,=_-]{{1,{most - 1}}}[ /:,=_-]*|[ /:,=_-]+", shortened(name, size)):
            if len(found[-1]) + len(part.rstrip()) > most:
                found.append("")
            found[-1] += part
        if len(found) <= lines:
            return "\n".join(found)
        size -= 1
