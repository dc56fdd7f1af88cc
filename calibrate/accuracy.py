"""Accuracy of a table's times when they are held out and then looked up.

Rows are held out in five ways. The times of the held-out rows are looked up the way a run looks them up, in tables of
the remaining rows, and compared with the measured times:

- `random`: a fifth of the rows, chosen by a hash of their key, so they are the same every time and do not depend on the
  order of the rows;
- `curves`: a fifth of the curves, chosen by a hash of their key (a curve: rows that differ only in tokens, context or
  bytes);
- `every 2nd`, `every 4th`: all points of each curve except every second or fourth one and the last;
- `largest`: the points of each curve above half of its largest size, at most a quarter of the curve.

Errors are (looked up - measured) / measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.calibrate.importers.vidur import import_vidur
from servesim.calibrate.journal import SHEET
from servesim.calibrate.lookup import keys_of, lookup
from servesim.cost.suspect import slow_collectives
from servesim.cost.tables import KernelTables, Rows
from servesim.errors import UserError, suggest
from servesim.hardware.gpu import Gpu, gpu_names

AXES = {
    "attention_decode": "past_tokens",
    "attention_prefill": "new_tokens",
    "attention_mixed": "past_tokens",
    "attention_skew": "longest",
    "window_decode": "past_tokens",
    "window_prefill": "new_tokens",
    "mla_decode": "past_tokens",
    "mla_prefill": "new_tokens",
    "dsa_decode": "past_tokens",
    "dsa_prefill": "new_tokens",
    "gdn_decode": "batch",
    "gdn_prefill": "new_tokens",
    "kda_decode": "batch",
    "kda_prefill": "new_tokens",
    "all_reduce": "bytes",
    "all_reduce_fused": "bytes",
    "all_reduce_nccl": "bytes",
    "all_gather": "bytes",
}
"""Column that varies along each operator's curves; for operators not listed, it is the number of tokens or rows (m)."""
_ALONE = (
    "all_reduce",
    "all_reduce_fused",
    "all_reduce_nccl",
    "all_gather",
    "norm",
    "activation",
    "rotary",
    "kv_write",
    "embedding",
    "sampler",
)
"""Operators whose times are not interpolated between curves, so that if a curve is held out, only the
    formula is left."""
_SHARE = 5
"""Reciprocal of the share of rows or curves that is held out: one in `_SHARE`."""
_FEW = 3
"""Minimum number of held-out rows for meaningful errors."""
SPLITS = ("random", "curves", "every 2nd", "every 4th", "largest")


@dataclass(frozen=True)
class HeldOut:
    """Errors, as fractions, of the rows of one operator that were held out in one way; `bias` is the mean signed
    error."""

    operator: str
    dtype: str
    split: str
    rows: int
    held_out: int
    median: float
    mean: float
    p95: float
    bias: float


def accuracy(tables: KernelTables, gpu: Gpu) -> Iterator[HeldOut]:
    """Yield the held-out errors of tables measured on `gpu`, operator by operator."""
    for op, dtype in tables.measured:
        rows = tables.rows(op, dtype)
        for split in SPLITS:
            held = held_out(op, rows, split)
            if held.sum() < _FEW or held.all():
                continue
            kept = tables.with_rows(op, dtype, {name: column[~held] for name, column in rows.items()})
            asked = {name: column[held] for name, column in rows.items()}
            errors = lookup(kept, gpu, op, dtype, asked) / (asked["time_us"] * 1e3) - 1.0
            yield _described(op, dtype, split, len(held), errors)


def suspicious(tables: KernelTables, gpu: Gpu) -> list[str]:
    """Return the entries of the tables that cannot be right or are outliers, one line each."""
    found = slow_collectives(tables, gpu)
    for op, dtype in tables.measured:
        count, worst, where = _spikes(op, tables.rows(op, dtype))
        if count:
            most = f"at most {worst:.1f} x ({where})"
            found.append(f"{op} {dtype}: points that take over twice as long as a larger one: {count:,}, {most}")
    return found


def _spikes(op: str, rows: Rows) -> tuple[int, float, str]:
    """Return the number of points more than twice as slow as a larger point of their curve, the worst ratio and its
    key."""
    axis, times = AXES.get(op, "m"), rows["time_us"]
    names = keys_of(rows)
    count, worst, where = 0, 0.0, ""
    for curve in _curves(rows, [name for name in names if name != axis]):
        points = curve[np.argsort(rows[axis][curve], kind="stable")]
        least = np.minimum.accumulate(times[points][::-1])[::-1]
        ratio = times[points] / least
        count += int((ratio > 2.0).sum())
        if ratio.max() > worst:
            worst, point = float(ratio.max()), points[int(ratio.argmax())]
            where = ", ".join(f"{name} {rows[name][point]}" for name in names)
    return count, worst, where


def held_out(op: str, rows: Rows, split: str) -> NDArray[np.bool_]:
    """Return which rows of an operator a split holds out."""
    count, axis = len(rows["time_us"]), AXES.get(op, "m")
    if split == "random":
        return _hashed(rows, keys_of(rows))
    names = [name for name in keys_of(rows) if name != axis]
    if split == "curves":
        return np.zeros(count, bool) if op in _ALONE else _hashed(rows, names)
    held = np.zeros(count, bool)
    for curve in _curves(rows, names):
        points = curve[np.argsort(rows[axis][curve], kind="stable")]
        held[points[_left_out(rows[axis][points], split)]] = True
    return held


def _left_out(sizes: NDArray[Any], split: str) -> NDArray[np.bool_]:
    """Return which points of a curve with ascending `sizes` are held out."""
    place, last = np.arange(len(sizes)), len(sizes) - 1
    if split == "largest":
        return np.asarray((sizes > sizes[-1] / 2) & (place > last - len(sizes) // 4))
    step = int(split.split()[1][0])
    return np.asarray((place % step != 0) & (place != last))


def _curves(rows: Rows, names: Sequence[str]) -> list[NDArray[np.int64]]:
    """Return the row indices of each curve."""
    keys = np.stack([rows[name].astype(np.int64) for name in names], axis=1)
    _, which = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(which.ravel()[order])) + 1))


def _hashed(rows: Rows, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask that selects one in `_SHARE` of the distinct keys."""
    keys = zip(*(rows[name].tolist() for name in names), strict=True)
    found: dict[tuple[int, ...], bool] = {}
    held = []
    for key in keys:
        if key not in found:
            digest = hashlib.blake2b(repr((*zip(names, key, strict=True),)).encode(), digest_size=8).digest()
            found[key] = int.from_bytes(digest, "little") % _SHARE == 0
        held.append(found[key])
    return np.array(held, dtype=bool)


def open_tables(name: str, gpu: str | None = None) -> tuple[KernelTables, Gpu]:
    """Open the tables named `name`, or those in the folder `name` (tables or Vidur's CSVs); return them and the GPU
    they were measured on: `gpu` if set, otherwise the GPU recorded in the tables."""
    path = Path(name)
    if path.is_file():
        raise UserError(f"{name} is a file: specify its folder instead")
    if not path.is_dir():
        shipped = [known for known in gpu_names() if Gpu.load(known).tables == known]
        if name not in shipped:
            raise UserError(f"{name} is neither a folder nor the name of shipped tables{suggest(name, shipped)}")
        return KernelTables.load(name), Gpu.load(gpu or name)
    if any(path.glob("*.parquet")):
        tables = KernelTables.load(folder=path)
        return tables, _measured_on(tables, gpu)
    with TemporaryDirectory() as scratch:
        import_vidur(path, scratch, gpu)
        tables = KernelTables.load(folder=scratch).loaded()
        return tables, _measured_on(tables, gpu)


def _measured_on(tables: KernelTables, gpu: str | None) -> Gpu:
    if gpu is not None:
        return Gpu.load(gpu)
    sheet = tables.folder / SHEET
    if sheet.is_file():
        return Gpu.load(str(sheet))
    for entry in tables.provenance.values():
        stated = str(entry.get("device", ""))
        for known in gpu_names():
            if _letters(known) == _letters(stated):
                return Gpu.load(known)
    raise UserError("the tables do not specify the measured GPU: add --gpu")


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _described(op: str, dtype: str, split: str, rows: int, errors: NDArray[np.float64]) -> HeldOut:
    size = np.abs(errors)
    figures = (np.median(size), size.mean(), np.quantile(size, 0.95), errors.mean())
    return HeldOut(op, dtype, split, rows, len(errors), *(float(f) for f in figures))
