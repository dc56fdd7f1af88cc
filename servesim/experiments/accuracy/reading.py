"""Readers of measured cells: tables, and summaries of recorded runs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from servesim import untrusted
from servesim.errors import UserError
from servesim.experiments.accuracy.cells import Cell, Side
from servesim.experiments.accuracy.commands import COLUMNS, RATE, SERVE, cell_of_run, number_in
from servesim.experiments.recording import RecordedRun
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.validate import measured_figures

WANTED = ("id", "silicon_data_source", "backend", "model_path", "system", "mode", "isl", "osl", "tp_size")
SIDES = ("prefill", "decode")
OF_SIDE = ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
APART = ("id", "backend", "model_path", "system", "isl", "osl", "conc", *(f"{s}_{n}" for s in SIDES for n in OF_SIDE))
"""Columns of a table in which every line describes disaggregated prefill and decode."""
TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
_RELEASE = re.compile(r"image=\S*?:(\S+)")


def read(paths: Sequence[str | Path]) -> list[Cell]:
    """Read tables of cells and recorded runs. If a path is a folder, read its tables if it holds any, else its recorded
    runs. Raise UserError if a path holds neither."""
    cells: list[Cell] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path] if path.is_file() else []
        tables = [file for file in files if _is_table(file)]
        if tables:
            cells += [cell for file in tables for cell in cells_in(untrusted.read_text(file), file)]
        else:
            cells += [_of_run(run) for run in read_folder(path)]
    return cells


def _is_table(file: Path) -> bool:
    with file.open("rb") as opened:
        head = opened.readline(20_000).decode("utf-8", "replace").strip().split(",")
    return set(TIMES) <= set(head) or {SERVE, RATE} <= set(head)


def cells_in(text: str, path: Path) -> list[Cell]:
    """Return the cells of a table with one per line, in aiconfigurator's columns or described by commands. Ignore other
    columns. `path` is named in errors."""
    reader = csv.DictReader(io.StringIO(text))
    names = set(reader.fieldnames or ())
    told = SERVE in names
    wanted = APART if set(APART) <= names and "mode" not in names else WANTED
    missing = sorted(set(COLUMNS if told else {*wanted, *TIMES}) - names)
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}")
    if told:
        return [cell_of_run(row, i, f"{path}: run {i}") for i, row in enumerate(reader)]
    return [_of_row(row, f"{path}: line {reader.line_num}") for row in reader]


def _of_row(row: dict[str, str], where: str) -> Cell:
    figure, source = partial(number_in, row, where), row.get("silicon_data_source") or ""
    stated, release = _CONCURRENCY.search(source), _RELEASE.search(source)
    return Cell(
        id=row["id"],
        source=source,
        engine=row["backend"],
        version=row.get("backend_version") or (release[1] if release else ""),
        model=row["model_path"],
        gpu=row["system"],
        precision=row.get("precision") or "",
        weights=row.get("gemm_quant_mode") or "",
        mode=row.get("mode") or "disagg",
        isl=round(figure("isl")),
        osl=round(figure("osl")),
        concurrency=int(stated[1]) if stated else round(figure("batch_size") or figure("conc")),
        tp=round(figure("tp_size")),
        pp=round(figure("pp_size")) or 1,
        dp=round(figure("attention_dp_size")),
        moe_tp=round(figure("moe_tp_size")) or 1,
        ep=round(figure("moe_ep_size")) or 1,
        ttft_ms=figure("silicon_ttft_ms"),
        tpot_ms=figure("silicon_tpot_ms"),
        batch=round(figure("batch_size")) if stated else 0,
        requests=round(figure("requests")),
        settings=_settings(row, where),
        sides=_sides(row.get("mode") or "disagg", figure),
        workers=" ".join(
            f"{name}={row[name]}" for name in row if name.startswith(("prefill_", "decode_")) and row[name]
        ),
    )


def _sides(mode: str, number: Callable[[str], float]) -> tuple[Side, Side] | None:
    """Return both sides of a cell with disaggregated prefill and decode, or None if either worker count is missing."""
    prefill, decode = (
        Side(*(round(number(f"{side}_{name}")) or int(name != "num_workers") for name in OF_SIDE)) for side in SIDES
    )
    return (prefill, decode) if mode == "disagg" and prefill.workers and decode.workers else None


def _settings(row: dict[str, str], where: str) -> tuple[tuple[str, Any], ...] | None:
    """Return the settings that a cell states, in the form `servesim measure` writes."""
    if not row.get("settings"):
        return None
    found = untrusted.parse_json(row["settings"], f"{where}: settings")
    if not isinstance(found, dict):
        raise UserError(f"{where}: settings must be a JSON object")
    return tuple(sorted(found.items()))


def _of_run(run: RecordedRun) -> Cell:
    """Summarize a recorded run. In an open loop, concurrency is the mean number of requests in flight by Little's
    law."""
    figures, server = measured_figures(run), run.server
    engine, _, version = server.engine.partition(" ")
    flight = 0.0
    if run.concurrency is None and np.isfinite(run.e2el_ms).any():
        ends = run.arrival_ns / 1e6 + run.e2el_ms
        flight = float(np.nansum(run.e2el_ms) / (np.nanmax(ends) - run.arrival_ns[0] / 1e6))
    return Cell(
        id=run.name,
        source=str(run.path.name),
        engine=engine,
        version=version,
        model=server.model or "",
        gpu=server.gpu or "",
        precision=server.dtype,
        weights=f"{server.dtype}{f' {server.speculation}' if server.speculation else ''}",
        isl=round(float(run.prompt_len.mean())) if len(run) else 0,
        osl=round(float(run.output_len.mean())) if len(run) else 0,
        concurrency=run.concurrency or max(round(flight), 1),
        tp=server.tp,
        ttft_ms=figures["ttft"]["mean"] or 0.0,
        tpot_ms=figures["tpot"]["mean"] or 0.0,
        run=run,
    )
