"""Files of a score: a CSV file with one line per cell, and the document."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.recipes import laboratory_of
from servesim.experiments.accuracy.scores import METRICS
from servesim.experiments.accuracy.study import Scored
from servesim.experiments.documents import plain
from servesim.experiments.store import RUNS
from servesim.run.result_files import REPORT, SUMMARY, to_json, write_text

CELLS = "cells.csv"
CASE = ("engine", "version", "model", "gpu", "precision", "tp", "ep", "in_flight", "prompt")
"""Fields of the case that the replay of a cell was, written with `run_` in front; empty for recordings."""
LABELS = ("id", "engine", "version", "model", "gpu", "precision", "mode", "tp", "ep", "isl", "osl", "concurrency")


def claim(out: Path) -> None:
    """Raise UserError if a score cannot be written, before any work is done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: exists and is not a folder")
    others = (
        sorted(p.name for p in out.iterdir() if p.name not in (CELLS, SUMMARY, REPORT, RUNS)) if out.is_dir() else []
    )
    if others:
        raise UserError(f"--out {out}: exists and is not a servesim score (it contains {others[0]})")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error


def write(out: Path, scored: Sequence[Scored], document: Mapping[str, Any]) -> None:
    """Write the cells and the document. The same score gives the same bytes."""
    text = io.StringIO()
    rows = csv.DictWriter(
        text,
        [*LABELS, "gpus", *_TIMES, "extrapolated", "formula", "screened", "reason", "laboratory", *_RUN],
        lineterminator="\n",
    )
    rows.writeheader()
    rows.writerows(_row(one) for one in scored)
    write_text(out / CELLS, text.getvalue(), "--out")
    write_text(out / SUMMARY, to_json(plain(document)), "--out")


_RUN = tuple(f"run_{name}" for name in CASE)
_TIMES = tuple(f"{metric}_{kind}" for metric in METRICS for kind in ("measured_ms", "simulated_ms", "ratio"))


def _row(one: Scored) -> dict[str, Any]:
    row = {name: getattr(one.cell, name) for name in LABELS}
    row |= {"gpus": one.cell.gpus, "screened": one.screened, "reason": one.answer.reason}
    row["laboratory"] = laboratory_of(one.cell)
    row |= {f"run_{name}": value for name, value in (one.answer.case or {}).items() if name in CASE}
    row |= {"extrapolated": _text(one.answer.extrapolated), "formula": _text(one.answer.formula)}
    for kind, values in (("measured_ms", one.measured), ("simulated_ms", one.simulated), ("ratio", one.ratios)):
        row |= {f"{m}_{kind}": _text(v) for m, v in zip(METRICS, values or (None,) * len(METRICS), strict=True)}
    return row


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


def ratios(cells: Sequence[Mapping[str, str]]) -> Iterator[tuple[Mapping[str, str], float, float]]:
    """Yield each cell that is not excluded and has an answer, with its TPOT and TTFT ratios."""
    for cell in cells:
        if not cell["screened"] and cell["tpot_ratio"] and cell["ttft_ratio"]:
            yield cell, float(cell["tpot_ratio"]), float(cell["ttft_ratio"])
