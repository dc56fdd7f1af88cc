"""Figures that repeat on any machine, stored: what a change may cost, and why it was let cost more.

`calls.json` holds `calls` (benchmarks.calls) and `instructions` (benchmarks.valgrind), each by the interpreter that
counted and by case, and the `history` of figures that were raised, each with its reason. A figure is only raised with
one, by a commit of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORED = Path(__file__).with_name("calls.json")
MOST = 3
"""Percent that a case may cost more than its stored figure."""


@dataclass(frozen=True)
class Kind:
    """A kind of count: its key in the file, the name of its cases, the module whose --store writes it, and the percent
    that it may be above its stored figure."""

    name: str
    by: str
    module: str
    most: float = MOST


def read(path: Path = STORED) -> dict[str, Any]:
    """Return the stored figures; none where there is no file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"history": []}


def stored(kind: Kind, path: Path = STORED) -> dict[str, int]:
    """Return the figures of a kind by case."""
    figures: dict[str, int] = read(path).get(kind.name, {}).get(kind.by, {})
    return figures


def judge(kind: Kind, count: int, before: int | None) -> tuple[str, bool]:
    """Return a line about the count of one case beside the figure before, and whether the case fails."""
    if before is None:
        return f"{count:,} {kind.name}; none are stored for {kind.by}: python -m {kind.module} --store does it", False
    more = 100 * (count - before)
    said = f"{count:,} {kind.name}, {more / before:+.2f} % of {before:,}"
    if more > kind.most * before:
        return f"{said}: TOO MANY (at most +{kind.most} %)", True
    lower = f"; the figure may be lowered: python -m {kind.module} --store" if more < -kind.most * before else ""
    return said + lower, False


def store(kind: Kind, counts: Mapping[str, int], why: str = "", path: Path = STORED) -> None:
    """Store counts by case. ValueError, and nothing written, where a figure rises and `why` does not say for what."""
    whole = read(path)
    figures = whole.setdefault(kind.name, {}).setdefault(kind.by, {})
    raised = {case: count for case, count in counts.items() if count > figures.get(case, count)}
    if raised and not why.strip():
        names = ", ".join(f"{case} {figures[case]:,} -> {count:,}" for case, count in raised.items())
        raise ValueError(f"{kind.name} would be raised ({names}): --why TEXT says for what, in a commit of its own")
    for case, count in raised.items():
        change = {"kind": kind.name, "by": kind.by, "case": case, "from": figures[case], "to": count}
        whole["history"].append({**change, "why": why.strip()})
    figures.update(counts)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
