"""Differences of two folders of results, a line each; exit code 1 if any:
`differences.py OLD NEW [--but-notes] [--but-sections=NAME,...]`.

timing.json is left out. With --but-notes, so are the notes of summary.json, and report.html, which prints them;
--but-sections leaves out other sections of summary.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

SHOWN = 20
"""Lines of one file."""


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a JSON document with its path."""
    if isinstance(value, (dict, list)) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


def of_json(old: Path, new: Path, left_out: Collection[str]) -> Iterator[str]:
    """Compare documents value by value; numbers as they are written."""
    before, after = (json.loads(p.read_text(encoding="utf-8"), parse_int=str, parse_float=str) for p in (old, new))
    for section in left_out:
        before.pop(section, None), after.pop(section, None)
    ours, theirs = dict(leaves(before)), dict(leaves(after))
    if list(ours) != list(theirs) and ours == theirs:
        yield "the same values in another order"
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key, "nothing") != theirs.get(key, "nothing"):
            yield f"{key}: {ours.get(key, 'nothing')} -> {theirs.get(key, 'nothing')}"


def of_table(old: Path, new: Path) -> Iterator[str]:
    """Compare tables column by column."""
    before, after = pq.read_table(old), pq.read_table(new)
    if before.schema != after.schema or len(before) != len(after):
        yield f"{before.shape} rows and columns -> {after.shape}"
        before, after = (t.slice(0, min(len(before), len(after))) for t in (before, after))
    for name in dict.fromkeys([*before.column_names, *after.column_names]):
        if name not in before.column_names or name not in after.column_names:
            yield f"column {name}: {'only new' if name in after.column_names else 'only old'}"
            continue
        ours, theirs = before[name].to_pylist(), after[name].to_pylist()
        rows = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b and not (a != a and b != b)]
        if rows:
            first = rows[0]
            yield f"column {name}: {len(rows)} rows, first {first}: {ours[first]} -> {theirs[first]}"


def of_text(old: Path, new: Path) -> Iterator[str]:
    """Name the first line that differs."""
    before, after = (p.read_text(encoding="utf-8").splitlines() for p in (old, new))
    for number, (a, b) in enumerate(zip(before, after, strict=False), 1):
        if a != b:
            start = max(0, next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0) - 20)
            yield f"line {number}, from column {start + 1}: {a[start : start + 80]} -> {b[start : start + 80]}"
            return
    yield f"{len(before)} lines -> {len(after)}"


def differences(old: Path, new: Path, but_notes: bool, but_sections: Collection[str] = ()) -> Iterator[str]:
    """Yield a line for every difference of two folders."""
    left_out = {*but_sections, *(["notes", "warnings"] if but_notes else [])}
    names = {str(p.relative_to(folder)) for folder in (old, new) for p in folder.rglob("*") if p.is_file()}
    for name in sorted(names - {"timing.json"} - ({"report.html"} if but_notes else set())):
        a, b = old / name, new / name
        if not a.is_file() or not b.is_file():
            yield f"{name}: only the {'old' if a.is_file() else 'new'} build writes it"
        elif a.read_bytes() != b.read_bytes():
            if name == "summary.json":
                found = list(of_json(a, b, left_out))
            else:
                found = list(of_table(a, b) if name.endswith(".parquet") else of_text(a, b))
            if not found and not (name == "summary.json" and left_out):
                found = ["the same values, written differently"]
            yield from (f"{name}: {line}" for line in found[:SHOWN])
            if len(found) > SHOWN:
                yield f"{name}: and {len(found) - SHOWN} more"


def main(arguments: list[str]) -> int:
    """Print the differences of two folders; return 1 if there are any."""
    but_notes = "--but-notes" in arguments
    sections = [a.partition("=")[2].split(",") for a in arguments if a.startswith("--but-sections=")]
    old, new = (Path(a) for a in arguments if not a.startswith("--but-"))
    found = list(differences(old, new, but_notes, [name for each in sections for name in each]))
    print(*(f"  {old.name} -> {new.name}: {line}" for line in found), sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
