"""Residuals of measured cells: log(measured / simulated) of mean TTFT, TPOT and E2E, from score files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError
from servesim.experiments.accuracy.files import CASE, CELLS
from servesim.experiments.accuracy.recipes import recipes
from servesim.intervals.case import METRICS, Case, model_key, version_key
from servesim.untrusted import read_text
from servesim.versions import engine_facts, engines

Floats = NDArray[np.float64]

COLUMNS = (
    "engine",
    "version",
    "model",
    "gpu",
    "precision",
    "tp",
    "ep",
    "isl",
    "concurrency",
    "extrapolated",
    "formula",
)
TIMES = tuple(f"{metric}_{kind}" for metric in METRICS for kind in ("ratio", "simulated_ms"))


@dataclass(frozen=True)
class Measured:
    """Measured cell: its case, its residuals by metric, and the fields used to pair cells."""

    case: Case
    residuals: dict[str, float]
    """Values of log(measured / simulated) by metric."""
    lengths: tuple[int, int]
    concurrency: int
    gpus: int
    output_mean: float
    laboratory: str = ""
    """Who measured it; empty if that is not known."""
    version_known: bool = True
    """Whether the case's version is the server's: not if it is the newest for lack of a version (a nightly build)."""


def read_measured(paths: Sequence[Path]) -> list[Measured]:
    """Read the kept and answered cells of scores (`cells.csv` of `servesim accuracy --out`, or its folder)."""
    found: list[Measured] = []
    for file, line, row in _kept(paths):
        if all(row[f"{metric}_ratio"] for metric in METRICS):
            try:
                found.append(_measured(row))
            except ValueError as error:
                raise UserError(f"{file}: line {line}: {error}") from None
    if not found:
        raise UserError(f"{', '.join(map(str, paths))}: no cell is kept and answered")
    return found


def kept(paths: Sequence[Path]) -> Counter[str]:
    """Return the number of kept cells by laboratory, answered or not."""
    return Counter(row.get("laboratory") or "" for _, _, row in _kept(paths))


def _kept(paths: Sequence[Path]) -> Iterator[tuple[Path, int, dict[str, str]]]:
    """Yield file, line and row of each cell that the screen leaves. Cells with separate prefill and decode are left
    out, since their errors are of a different kind."""
    for path in paths:
        file = path / CELLS if path.is_dir() else path
        rows = csv.DictReader(io.StringIO(read_text(file)))
        missing = sorted({*COLUMNS, *TIMES, *(f"run_{name}" for name in CASE)} - set(rows.fieldnames or ()))
        if missing:
            raise UserError(
                f"{file}: no column {', '.join(missing)}: cells.csv of this version's servesim accuracy --out is needed"
            )
        for row in rows:
            if not row["screened"] and row.get("mode") != "disagg":
                yield file, rows.line_num, row


def _measured(row: dict[str, str]) -> Measured:
    simulated = {metric: float(row[f"{metric}_simulated_ms"]) for metric in METRICS}
    ratios = {metric: float(row[f"{metric}_ratio"]) for metric in METRICS}
    if min(*simulated.values(), *ratios.values()) <= 0:
        raise ValueError("times and ratios must be above 0")
    labels = {name: row[f"run_{name}"] for name in CASE}
    labels = labels if labels["engine"] else _of_recording(row)
    case = Case(
        engine=labels["engine"],
        version=version_key(labels["version"]),
        model=labels["model"],
        gpu=labels["gpu"],
        precision=labels["precision"],
        tp=int(labels["tp"]),
        ep=int(labels["ep"]),
        in_flight=float(labels["in_flight"]),
        prompt=float(labels["prompt"]),
        ttft_ms=simulated["ttft"],
        tpot_ms=simulated["tpot"],
        extrapolated=min(float(row["extrapolated"] or 0) + float(row["formula"] or 0), 1.0),
    )
    output = 1 + (simulated["e2e"] - simulated["ttft"]) / simulated["tpot"]
    residuals = {metric: -float(np.log(ratio)) for metric, ratio in ratios.items()}
    lengths = int(row["isl"]), int(row["osl"])
    concurrency, gpus = int(row["concurrency"]), int(row["gpus"])
    newest = version_key(_newest(case.engine))
    assumed = case.version and case.version == newest and version_key(row["version"]) != newest
    laboratory = row.get("laboratory") or ""
    return Measured(case, residuals, lengths, concurrency, gpus, output, laboratory, not assumed)


def _newest(engine: str) -> str:
    return engine_facts(engine).version if engine in engines() else ""


def _of_recording(row: dict[str, str]) -> dict[str, str]:
    """Return the labels of a recording, which is replayed without a scenario, in the words of runs."""
    tables = recipes()
    own = tables["models"].get(row["model"], {})
    return {
        "engine": tables["engines"].get(row["engine"], {}).get("preset", row["engine"]),
        "version": row["version"],
        "model": model_key(own.get("model", row["model"])),
        "gpu": tables["gpus"].get(row["gpu"], row["gpu"]),
        "precision": own.get("dtype") or tables["weights"].get(row["precision"], row["precision"]),
        "tp": row["tp"],
        "ep": row["ep"],
        "in_flight": row["concurrency"],
        "prompt": row["isl"],
    }


def deployment_weights(cells: Sequence[Measured]) -> Floats:
    """Return weights (n) that give every deployment a total of 1, regardless of its number of cells."""
    names = [cell.case.deployment for cell in cells]
    _, places, counts = np.unique(names, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[places], dtype=np.float64)
