"""CSV files of measurements as checked columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from servesim.errors import UserError
from servesim.untrusted import csv_rows

Columns = dict[str, list[Any]]
FEW = 20
"""Minimum number of repeats for a meaningful spread."""


def read_columns(
    path: Path,
    times: Sequence[str],
    counts: Sequence[str],
    text: Sequence[str] = (),
    skip_empty: bool = False,
    optional: Sequence[str] = (),
) -> Columns:
    """Read the named columns: `times` must be numbers above 0, and `counts` integers of at least 0. Raise UserError
    with the file, row and column if they are not. With `skip_empty`, an empty time is None. Text in `optional` columns
    is empty if there is no such column."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    rows = csv_rows(path)
    header = next(rows)
    if missing := [repr(name) for name in (*times, *counts, *text) if name not in header]:
        several = len(missing) > 1
        raise UserError(f"{path}: column{'s' * several} {', '.join(missing)} {'are' if several else 'is'} missing")
    columns: Columns = {name: [] for name in (*times, *counts, *text, *optional)}
    for row, values in enumerate(rows, 1):
        for name in text:
            columns[name].append(values[name])
        for name in optional:
            columns[name].append(values.get(name) or "")
        for name in counts:
            columns[name].append(_count(path, row, name, values[name]))
        for name in times:
            empty = skip_empty and not values[name]
            columns[name].append(None if empty else _time(path, row, name, values[name]))
    return columns


def relative_error(repeats: Iterable[Sequence[float]]) -> float | None:
    """Return the pooled relative standard deviation of repeated measurements, given as the times of each call, or None
    if there are too few."""
    freedom, squares = 0, 0.0
    for times in repeats:
        freedom += len(times) - 1
        mean = statistics.fmean(map(math.log, times))
        squares += sum((math.log(us) - mean) ** 2 for us in times)
    return round(math.sqrt(squares / freedom), 6) if freedom >= FEW else None


def _number(path: Path, row: int, name: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise UserError(f"{path}: row {row}: {name} is {text!r}, not a number") from None


def _time(path: Path, row: int, name: str, text: str | None) -> float:
    value = _number(path, row, name, text)
    if not 0.0 < value < float("inf"):
        raise UserError(f"{path}: row {row}: {name} is {value:g} but must be a number above 0")
    return value


def _count(path: Path, row: int, name: str, text: str | None) -> int:
    value = _number(path, row, name, text)
    if not 0.0 <= value < 2**31 or value != int(value):
        raise UserError(f"{path}: row {row}: {name} is {value:g} but must be a whole number of at least 0")
    return int(value)
