"""DataFrames as traces, with the columns of servesim's own format (formats/native_csv.py), and `content` and `after` as
lists.

pd.DataFrame({"arrival_ns": [0, 5_000_000], "prompt_len": [300, 900], "output_len": [40, 10]})
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servesim.errors import UserError
from servesim.workload.trace import Trace

from .formats import _native

if TYPE_CHECKING:
    import pandas as pd

NAME = "DataFrame"


def from_frame(frame: pd.DataFrame, *, sort: bool = False) -> Trace:
    """Build a trace with one request per row, named by `frame.attrs` if it has a name. A UserError gives the number of
    the row, counted from 0."""
    known = (*_native.REQUIRED, *_native.OPTIONAL)
    for column in _native.REQUIRED:
        if column not in frame.columns:
            raise UserError(f"{NAME}: no column {column!r}; needed: {', '.join(_native.REQUIRED)}")
    if frame.empty:
        raise UserError(f"{NAME}: no rows")
    cells = {str(name): [None if _missing(cell) else cell for cell in frame[name].tolist()] for name in frame.columns}
    name = str(frame.attrs.get("name", NAME))
    notes = _native.aside(column for column in cells if column not in known)
    cells = {column: values for column, values in cells.items() if column in known}
    try:
        return _native.build(Path(NAME), name, notes, cells, list(range(len(frame))), sort)
    except UserError as error:  # the shared checks report lines
        raise UserError(str(error).replace("line ", "row ", 1)) from error


def _missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and cell != cell)
