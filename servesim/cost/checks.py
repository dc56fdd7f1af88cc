"""Faults that make a kernel table unusable. Such tables are rejected, with the file and row named, before any
pricing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError

_LEAST_US = 0.1
"""Minimum time of any kernel from launch to end."""
_MOST_FLOPS = 2e16
"""Arithmetic rate per second that no GPU reaches."""
_LEAST_FLOPS = 1e8
"""Arithmetic rate per second that every CPU reaches in its best GEMM."""
_AGREE = 0.05
"""Maximum relative difference between repeats, i.e. rows of one shape. Rows that differ more contradict each other."""


def checked(path: Path, table: Any, keys: Sequence[str]) -> Any:
    """Return the rows of `table` (a pyarrow table, as in the file at `path`), keeping the first of repeated rows. Raise
    UserError if a time is invalid, if the unit cannot be microseconds, or if rows of one shape (equal in `keys`)
    disagree."""
    times = np.array(table["time_us"].to_pylist(), dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(times) & (times > 0.0)))
    if len(bad):
        raise _refusal(path, bad[0], f"time_us is {times[bad[0]]:g} but must be a number above 0")
    _check_unit(path, table, times)
    return _without_repeats(path, table, keys)


def _check_unit(path: Path, table: Any, times: NDArray[np.float64]) -> None:
    least = int(np.argmin(times))
    if times[least] < _LEAST_US:
        raise _refusal(
            path, least, (f"time_us is {times[least]:g}: no kernel is that fast (are the times in milliseconds?)")
        )
    rows = np.flatnonzero(np.array(table["op"].to_pylist()) == "gemm")
    if not len(rows):
        return
    m, n, k = (np.array(table[c].to_pylist(), dtype=np.float64)[rows] for c in ("m", "n", "k"))
    flops = 2.0 * m * n * k / (times[rows] * 1e-6)
    best = int(np.argmax(flops))
    if flops[best] > _MOST_FLOPS:
        raise _refusal(
            path, rows[best], f"{flops[best]:.1g} FLOP/s exceeds the peak of any GPU (are the times in milliseconds?)"
        )
    if flops[best] < _LEAST_FLOPS:
        raise _refusal(path, rows[best], f"{flops[best]:.1g} FLOP/s at best (are the times in nanoseconds?)")


def _without_repeats(path: Path, table: Any, keys: Sequence[str]) -> Any:
    import pyarrow as pa

    present = [key for key in keys if key in table.column_names and key != "kernel"]
    numbered = table.append_column("row", pa.array(range(len(table)), type=pa.int64()))
    groups = numbered.group_by(present).aggregate([("time_us", "min"), ("time_us", "max"), ("row", "min")])
    low, high, first = (groups[c].to_pylist() for c in ("time_us_min", "time_us_max", "row_min"))
    if len(first) == len(table):
        return table
    for least, most, row in sorted(zip(low, high, first, strict=True), key=lambda group: group[2]):
        if most > least * (1.0 + _AGREE):
            raise _refusal(path, row, f"other rows of this shape disagree ({least:g} to {most:g} us)")
    return table.take(pa.array(sorted(first), type=pa.int64()))


def _refusal(path: Path, row: int, what: str) -> UserError:
    return UserError(f"kernel table {path}: row {int(row) + 1}: {what}")
