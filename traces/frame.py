"""DataFrames as traces: with the columns of servesim's own format (formats/native_csv.py), with `content` and `after`
as lists, or with columns of any names, which are recognized as in a CSV (formats/log.py).

pd.DataFrame({"arrival_ns": [0, 5_000_000], "prompt_len": [300, 900], "output_len": [40, 10]})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.errors import UserError, shown
from servesim.workload.trace import Trace

from .formats import _native, log
from .formats._names import Columns
from .formats._table import Table, unpacked

if TYPE_CHECKING:
    import pandas as pd

NAME = "DataFrame"


def from_frame(
    frame: pd.DataFrame,
    *,
    sort: bool = False,
    columns: str | Mapping[str, Any] | None = None,
    timing: str = "think",
) -> Trace:
    """Build a trace with one request per row; its name is taken from `frame.attrs` if given there. `columns` and
    `timing` are as for a log; an index of times is treated as a column. A UserError gives the number of the row,
    counted from 0."""
    if frame.index.dtype.kind == "M" and (name := str(frame.index.name or "timestamp")) not in frame.columns:
        frame = frame.reset_index(names=name)
    if frame.empty:
        raise UserError(f"{NAME}: no rows")
    if not frame.columns.is_unique:
        again = frame.columns[frame.columns.duplicated()][0]
        raise UserError(f"{NAME}: column {shown(again)} appears twice")
    name, asked = str(frame.attrs.get("name", NAME)), Columns.of(columns)
    lines = list(range(len(frame)))
    try:
        if set(_native.REQUIRED) <= set(frame.columns) and not asked.given:
            known = (*_native.REQUIRED, *_native.OPTIONAL)
            cells = {str(each): _cells(frame[each]) for each in frame.columns}
            notes = _native.aside(each for each in cells if each not in known)
            cells = {each: values for each, values in cells.items() if each in known}
            return _native.build(Path(NAME), name, notes, cells, lines, sort, unit=asked.unit)
        units = {str(each): "ns" for each in frame.columns if frame[each].dtype.kind == "M"}
        by_name: dict[str, list[Any]] = {}
        for each in frame.columns:
            by_name |= unpacked(Path(NAME), str(each), _cells(frame[each]), lines)
        table = Table(Path(NAME), list(by_name), lines, by_name.__getitem__, units)
        return replace(log.of_table(table, asked, timing), name=name)
    except UserError as error:  # the shared checks report line numbers
        raise UserError(str(error).replace("line ", "row ", 1)) from error


def _cells(column: pd.Series[Any]) -> list[Any]:
    """Return the cells of a column: times as ns since 1970, and None for missing values."""
    missing = column.isna().tolist()
    if column.dtype.kind == "M":
        column = column.dt.tz_convert(None) if column.dt.tz is not None else column
        try:
            column = column.astype("datetime64[ns]").astype("int64")
        except (ValueError, OverflowError) as error:  # pandas' OutOfBoundsDatetime is a ValueError
            raise UserError(f"{NAME}: {column.name}: times must be between the years 1678 and 2262") from error
    return [None if gone else _plain(cell) for gone, cell in zip(missing, column.tolist(), strict=True)]


def _plain(cell: Any) -> Any:
    if hasattr(cell, "isoformat"):
        return cell.isoformat()
    return cell.item() if isinstance(cell, np.generic) else cell
