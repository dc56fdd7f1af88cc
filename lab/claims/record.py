"""Verdicts of the last full run, kept beside the experiments: `reproduce --list` counts them, and a page is made of
those that correct a text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from . import VERDICTS

NAME = "verdicts.jsonl"
KEYS = ("what", "published", "simulated", "verdict", "share", "note")


@cache
def recorded() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each experiment that compare a published figure."""
    text = resources.files("servesim_lab.claims").joinpath(NAME).read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("experiment"), []).append(row)
    return found


def lines_of(name: str, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return an experiment's rows as lines of the record."""
    return [
        json.dumps({"experiment": name} | {key: row[key] for key in KEYS if row[key] is not None}, ensure_ascii=False)
        for row in rows
        if row["verdict"] != "shown"
    ]


def counts() -> dict[str, int]:
    """Return the number of recorded claims by verdict."""
    found = Counter(row["verdict"] for rows in recorded().values() for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}
