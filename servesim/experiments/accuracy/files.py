"""Files of a score: a CSV file with one line per cell, and the document."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.recipes import laboratory_of
from servesim.experiments.accuracy.scores import METRICS
from servesim.experiments.accuracy.study import Scored
from servesim.experiments.documents import plain
from servesim.experiments.store import RUNS
from servesim.run.result_files import REPORT, SUMMARY, to_json, writable, write_text

CELLS = "cells.csv"
CASE = ("engine", "version", "model", "gpu", "precision", "tp", "ep", "in_flight", "prompt")
"""Fields of the case that the replay of a cell was, written with `run_` in front; empty for recordings."""
LABELS = ("id", "engine", "version", "model", "gpu", "precision", "mode", "tp", "ep", "isl", "osl", "concurrency")


def claim(out: Path) -> None:
    """Raise UserError if a score cannot be written, before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: exists and is not a folder")
    others = sorted({p.name for p in out.iterdir()} - {CELLS, SUMMARY, REPORT, RUNS}) if out.is_dir() else []
    if others:
        raise UserError(f"--out {out}: exists and is not a servesim score (it contains {others[0]})")
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)


def write(out: Path, scored: Sequence[Scored], document: Mapping[str, Any]) -> None:
    """Write the cells and the document. The same score gives the same bytes."""
    import pandas as pd

    rows = pd.DataFrame([_row(one) for one in scored], dtype=object)
    write_text(out / CELLS, rows.to_csv(index=False, lineterminator="\n"), "--out")
    write_text(out / SUMMARY, to_json(plain(document)), "--out")


def _row(one: Scored) -> dict[str, Any]:
    row = {name: getattr(one.cell, name) for name in (*LABELS, "gpus")}
    times = {"measured_ms": one.measured, "simulated_ms": one.simulated, "ratio": one.ratios}
    for i, metric in enumerate(METRICS):
        row |= {f"{metric}_{kind}": _text(values[i] if values else None) for kind, values in times.items()}
    row |= {"extrapolated": _text(one.answer.extrapolated), "formula": _text(one.answer.formula)}
    row |= {"screened": one.screened, "reason": one.answer.reason, "laboratory": laboratory_of(one.cell)}
    return row | {f"run_{name}": (one.answer.case or {}).get(name) for name in CASE}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def load(folder: Path) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Read the cells and the document of a score. Raise UserError if they are damaged."""
    try:
        with (folder / CELLS).open(encoding="utf-8", newline="") as file:
            cells = list(csv.DictReader(file))
        document: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if not isinstance(document, dict) or {"scores", "decisions", "screen"} - set(document):
            raise ValueError("its summary.json is not from a score")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: damaged: {error}") from error
    return cells, document
