"""Measured serving cells: mean TTFT and TPOT of one server at one pair of lengths and one number of clients."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from servesim.errors import UserError
from servesim.experiments.recording import RecordedRun, read_text
from servesim.experiments.recording_formats import read_folder
from servesim.experiments.validate import measured_figures

WANTED = ("id", "silicon_data_source", "backend", "model_path", "system", "mode", "isl", "osl", "tp_size")
TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
PACKAGE, SAMPLE, CONFIGS = "aiconfigurator_core", "systems/silicon_sample.csv", "model_configs"
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
_RELEASE = re.compile(r"image=\S*?:(\S+)")


@dataclass(frozen=True)
class Cell:
    """One measured cell. Counts are 0 and texts empty where the label is missing; times are means in ms."""

    id: str
    source: str
    """What its label says of where it was measured."""
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    weights: str
    """Format of the linear layers as labelled."""
    mode: str
    """`agg`: one engine; `disagg`: prefill and decode apart."""
    isl: int
    osl: int
    """Nominal prompt and output length, tokens."""
    concurrency: int
    """Clients in closed loop; of an open loop the mean in flight."""
    tp: int
    pp: int
    dp: int
    """Copies of attention, each with requests of its own."""
    moe_tp: int
    ep: int
    ttft_ms: float
    tpot_ms: float
    workers: str = ""
    """Where prefill and decode are apart: their numbers, sizes and parallelism as labelled."""
    run: RecordedRun | None = field(default=None, compare=False, repr=False)
    """The recorded run the cell sums up; None: a line of a table."""

    @property
    def gpus(self) -> int:
        """GPUs of the server; those its experts are spread over where these are more."""
        return max(self.tp * max(self.dp, 1), self.moe_tp * self.ep) * max(self.pp, 1)

    @property
    def product(self) -> tuple[str, ...]:
        """What is bought whatever its size: engine, version, model, GPU, formats."""
        return (self.engine, self.version, self.model, self.gpu, self.precision, self.weights, self.mode)

    @property
    def deployment(self) -> tuple[str | int, ...]:
        """One server: a product and its parallelism, at all lengths and concurrencies."""
        return (*self.product, self.tp, self.pp, self.dp, self.moe_tp, self.ep, self.workers)

    @property
    def place(self) -> tuple[str | int, ...]:
        """What a repeat of the measurement has in common with it."""
        return (*self.deployment, self.isl, self.osl, self.concurrency)

    @property
    def name(self) -> str:
        """A line for progress."""
        lengths = f"{self.isl}/{self.osl}"
        return f"{self.engine} {self.version} {self.model} {self.gpu} tp{self.tp} {lengths} C={self.concurrency}"


def sample_file() -> Path:
    """Return the table of measured cells inside an installed aiconfigurator-core; UserError without it."""
    folder = package_folder()
    if folder is None or not (folder / SAMPLE).is_file():
        raise UserError(
            "no files given, and the measured cells of aiconfigurator-core 0.12.0 are not installed: "
            'pip install "servesim[silicon]", or name a table or recordings of your own'
        )
    return folder / SAMPLE


def package_folder() -> Path | None:
    """Return the folder of the installed aiconfigurator-core, which is not imported; None without it."""
    spec = find_spec(PACKAGE)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def read(paths: Sequence[str | Path]) -> list[Cell]:
    """Read tables of cells and recorded runs; of a folder the tables if it holds any, else its recorded runs.
    UserError where a path holds neither."""
    cells: list[Cell] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path] if path.is_file() else []
        tables = [file for file in files if _is_table(file)]
        if tables:
            cells += [cell for file in tables for cell in read_table(file)]
        else:
            cells += [_of_run(run) for run in read_folder(path)]
    return cells


def _is_table(file: Path) -> bool:
    with file.open("rb") as opened:
        head = opened.readline(20_000).decode("utf-8", "replace").strip().split(",")
    return set(TIMES) <= set(head)


def read_table(path: Path) -> list[Cell]:
    """Read a table of cells in aiconfigurator's columns (one line a cell; other columns are ignored)."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    missing = sorted({*WANTED, *TIMES} - set(reader.fieldnames or ()))
    if missing:
        raise UserError(f"{path}: no column {', '.join(missing)}")
    return [_of_row(row, f"{path}: line {reader.line_num}") for row in reader]


def _of_row(row: dict[str, str], where: str) -> Cell:
    def number(name: str) -> float:
        text = row.get(name) or ""
        try:
            value = float(text) if text.strip() else 0.0
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{where}: {name} is {text!r}, a number is needed")
        return value

    source = row["silicon_data_source"] or ""
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
        mode=row["mode"],
        isl=round(number("isl")),
        osl=round(number("osl")),
        concurrency=int(stated[1]) if stated else round(number("batch_size")),
        tp=round(number("tp_size")),
        pp=round(number("pp_size")) or 1,
        dp=round(number("attention_dp_size")),
        moe_tp=round(number("moe_tp_size")) or 1,
        ep=round(number("moe_ep_size")) or 1,
        ttft_ms=number("silicon_ttft_ms"),
        tpot_ms=number("silicon_tpot_ms"),
        workers=" ".join(
            f"{name}={row[name]}" for name in row if name.startswith(("prefill_", "decode_")) and row[name]
        ),
    )


def _of_run(run: RecordedRun) -> Cell:
    """Sum a recorded run up; of an open loop concurrency is the mean in flight, by Little's law."""
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
        mode="agg",
        isl=round(float(run.prompt_len.mean())) if len(run) else 0,
        osl=round(float(run.output_len.mean())) if len(run) else 0,
        concurrency=run.concurrency or max(round(flight), 1),
        tp=server.tp,
        pp=1,
        dp=1,
        moe_tp=1,
        ep=1,
        ttft_ms=figures["ttft"]["mean"] or 0.0,
        tpot_ms=figures["tpot"]["mean"] or 0.0,
        run=run,
    )
