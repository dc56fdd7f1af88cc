"""Quality of a kernel table: its coverage, repeatability, anomalies, and differences from other tables of the same
GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.calibrate.accuracy import AXES
from servesim.calibrate.journal import SETTINGS, SHEET, Journal
from servesim.calibrate.lookup import lookup
from servesim.calibrate.points import HELD_OUT, Point
from servesim.contracts.cost import Batch
from servesim.cost.attention import TableAttention
from servesim.cost.formula import COMPUTE_DTYPE, Roofline
from servesim.cost.stage import AttentionLayers, Stage
from servesim.cost.tables import KernelTables, Rows
from servesim.errors import UserError
from servesim.hardware import Gpu, gpu_names

_UNITS = {
    "m": "rows",
    "past_tokens": "tokens of context",
    "new_tokens": "new tokens",
    "bytes": "bytes",
    "batch": "sequences",
}
_DROP = 0.1
"""Relative decrease in time above which an increase in work that takes less time counts as an anomaly."""
_SPREAD = 1.3
_MOST = 400
"""Maximum number of rows compared with another table, evenly spaced."""
_COMPARED = ("gemm", "attention_decode", "attention_prefill", "norm", "activation", "rotary", "embedding", "sampler")


@dataclass(frozen=True)
class Operator:
    """Rows of one operator in one format."""

    op: str
    dtype: str
    rows: Rows
    shapes: int
    """Number of curves: combinations of everything but the size."""
    kernels: tuple[str, ...]
    spread: float | None
    """Median of p90 / p10 - 1."""

    @property
    def size(self) -> str:
        """Name of the size column."""
        return str(AXES.get(self.op, "m"))

    @property
    def unit(self) -> str:
        """Unit of the size."""
        return "tokens" if self.op in ("gemm", "moe", "moe_ep") else _UNITS[self.size]


@dataclass(frozen=True)
class HeldOutError:
    """Errors of points that are held out of the table and looked up in the rest of it."""

    what: str
    errors: NDArray[np.float64]
    """Ratios of looked-up to measured times, minus 1."""


@dataclass(frozen=True)
class Against:
    """Ratios of this table's times to another table's, by operator."""

    other: str
    ratios: dict[tuple[str, str], NDArray[np.float64]]


@dataclass
class Quality:
    """All data that the page shows."""

    name: str
    provenance: dict[str, dict[str, Any]]
    gpu: Gpu
    operators: list[Operator]
    repeats: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    held_out: list[HeldOutError] = field(default_factory=list)
    anomalies: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of operator and anomaly."""
    against: list[Against] = field(default_factory=list)


def quality(folder: Path, gpu: str | None = None, against: Sequence[str] | None = None) -> Quality:
    """Evaluate the tables in a folder. `gpu` names the GPU if the tables do not record it. `against` names other tables
    (shipped ones by name, or folders); None means those shipped for the same GPU."""
    tables = KernelTables.load(folder=folder)
    sheet = _gpu(folder, tables, gpu)
    found = Quality(folder.resolve().name, tables.provenance, sheet, list(_operators(folder, tables)))
    journal = Journal.load(folder) if (folder / SETTINGS).is_file() else None
    if journal is not None:
        found.repeats = journal.spread()
        found.drift = [d for run in journal.settings["runs"] for d in run.get("drift", [])]
        found.held_out = list(_held_out(journal, tables, sheet))
    for operator in found.operators:
        found.anomalies += list(_anomalies(operator, sheet))
    if journal is not None:
        odd = sum(m.suspect for m in journal.grid.values())
        if odd:
            found.anomalies.append(("all", f"{odd} points were measured while the clock drifted"))
    names = against if against is not None else ([sheet.tables] if sheet.tables else [])
    found.against = [_compare(found.operators, name, sheet) for name in names]
    return found


def _gpu(folder: Path, tables: KernelTables, name: str | None) -> Gpu:
    stated = [str(p["gpu"]) for p in tables.provenance.values() if p.get("gpu")]
    if name or stated:
        return Gpu.load(name or stated[0])
    if (folder / SHEET).is_file():
        return Gpu.load(str(folder / SHEET))
    if folder.resolve().name in gpu_names():
        return Gpu.load(folder.resolve().name)
    raise UserError(f"{folder} does not specify the measured GPU: add --gpu")


def _operators(folder: Path, tables: KernelTables) -> Iterator[Operator]:
    import pyarrow.parquet as pq

    for path in sorted(folder.glob("*.parquet")):
        frame = pq.ParquetFile(path).read().to_pylist()
        for op, dtype in sorted({(row["op"], row["dtype"]) for row in frame}):
            mine = [row for row in frame if (row["op"], row["dtype"]) == (op, dtype)]
            rows = tables.rows(op, dtype)
            size = AXES.get(op, "m")
            keys = [name for name in rows if name not in (size, "time_us")]
            shapes = len(set(zip(*(rows[name].tolist() for name in keys), strict=True))) if keys else 1
            spread = [r["p90_us"] / r["p10_us"] - 1.0 for r in mine if r.get("p10_us")]
            kernels = tuple(sorted({str(r["kernel"]) for r in mine}))
            yield Operator(op, dtype, rows, shapes, kernels, float(np.median(spread)) if spread else None)


def _held_out(journal: Journal, tables: KernelTables, gpu: Gpu) -> Iterator[HeldOutError]:
    points = [m for m in journal.grid.values() if m.point.stage == HELD_OUT]
    gemms: dict[str, list[Any]] = {}
    uneven: dict[str, list[float]] = {}
    for m in points:
        if m.point.op == "gemm":
            gemms.setdefault(m.point.dtype, []).append(m)
        else:
            name = "decodes with unequal contexts beside a prompt"
            if all(new == 1 for new, _, _ in m.point.pieces):
                name = "decodes with unequal contexts"
            uneven.setdefault(name, []).append(_attention_us(tables, gpu, m.point) / m.timing.median_us - 1.0)
    for dtype, mine in gemms.items():
        rows = {c: np.array([getattr(m.point, c) for m in mine]) for c in ("m", "n", "k")}
        times = np.array([m.timing.median_us for m in mine])
        found = lookup(tables, gpu, "gemm", dtype, rows) / 1e3
        yield HeldOutError(f"gemm {dtype}, token counts between grid points", found / times - 1.0)
    for name, errors in uneven.items():
        yield HeldOutError(name, np.array(errors))


def _attention_us(tables: KernelTables, gpu: Gpu, point: Point) -> float:
    """Return the time in microseconds of a call over any sequences, priced by the cost model as one layer."""
    attention = TableAttention(tables, point.shape, point.dtype)
    contexts = [past + 1 for new, past in point.sequences if new == 1]
    prompts = [(new, past) for new, past in point.sequences if new > 1]
    batch = Batch(
        sum(new for new, _ in point.sequences),
        prompts,
        decode_count=len(contexts),
        decode_context_sum=sum(contexts),
        decode_context_sumsq=sum(c * c for c in contexts),
        decode_context_max=max(contexts, default=0),
    )
    return Stage([], [], [AttentionLayers(attention, 1)], Roofline(gpu)).cost(batch, 0)[0] / 1e3


def _anomalies(operator: Operator, gpu: Gpu) -> Iterator[tuple[str, str]]:
    """Yield anomalies: less time for more work, times below the data sheet's limit, kernels that could not be captured,
    and wide spread."""
    rows, name = operator.rows, f"{operator.op} {operator.dtype}"
    if any("not captured" in kernel for kernel in operator.kernels):
        yield name, "some kernels could not be captured in a graph: their times include launches"
    if operator.spread is not None and operator.spread > _SPREAD - 1.0:
        yield name, f"timings spread by {operator.spread:.0%} from p10 to p90"
    drops, worst = 0, (0.0, "")
    for label, x, y in curves(operator):
        for a, b, less, more in zip(x[:-1], x[1:], y[:-1], y[1:], strict=True):
            if more < less * (1.0 - _DROP):
                drops += 1
                worst = max(
                    worst,
                    (
                        1.0 - more / less,
                        (f"{label}: from {a:g} to {b:g}, the time falls from {less:.1f} to {more:.1f} us"),
                    ),
                )
    if drops:
        yield (
            name,
            f"in {drops} case{'s' * (drops != 1)}, more work takes less time, by up to {worst[0]:.0%} ({worst[1]})",
        )
    if operator.op == "gemm" and COMPUTE_DTYPE.get(operator.dtype) in gpu.flops:
        roofline, sizes = Roofline(gpu), zip(rows["m"].tolist(), rows["n"].tolist(), rows["k"].tolist(), strict=True)
        least = np.array([roofline.gemm(m, n, k, operator.dtype) / 1e3 for m, n, k in sizes])
        fast = int((rows["time_us"] < least * 0.98).sum())
        if fast:
            yield name, f"{fast} of {len(least)} rows are faster than the data sheet allows (weights in the cache?)"


def curves(operator: Operator) -> Iterator[tuple[str, NDArray[Any], NDArray[np.float64]]]:
    """Yield (label, sizes, microseconds) of every curve, with ascending sizes."""
    rows, size = operator.rows, operator.size
    keys = [name for name in rows if name not in (size, "time_us")]
    shape = np.stack([rows[name] for name in keys], axis=1) if keys else np.zeros((len(rows["time_us"]), 0))
    for one in np.unique(shape, axis=0):
        mask = (shape == one).all(axis=1)
        order = np.argsort(rows[size][mask])
        label = ", ".join(f"{name} {value:g}" for name, value in zip(keys, one.tolist(), strict=True))
        yield label, rows[size][mask][order], rows["time_us"][mask][order]


def _compare(operators: Sequence[Operator], name: str, gpu: Gpu) -> Against:
    other = KernelTables.load(folder=name) if Path(name).is_dir() else KernelTables.load(name)
    if not other.provenance:
        raise UserError(f"no kernel tables named {name!r}")
    ratios = {}
    for operator in operators:
        if operator.op not in _COMPARED or not other.rows(operator.op, operator.dtype):
            continue
        rows = operator.rows
        if operator.op == "attention_prefill":  # few tables have a cached-context axis
            mask = rows["past_tokens"] == 0
            rows = {column: values[mask] for column, values in rows.items()}
        pick = np.unique(np.linspace(0, len(rows["time_us"]) - 1, min(_MOST, len(rows["time_us"]))).astype(int))
        rows = {column: values[pick] for column, values in rows.items()}
        theirs = lookup(other, gpu, operator.op, operator.dtype, rows) / 1e3
        ratios[operator.op, operator.dtype] = rows["time_us"] / theirs
    return Against(name, ratios)
