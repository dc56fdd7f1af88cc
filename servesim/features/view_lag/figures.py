"""What the router saw of the replicas it chose, beside what was there: where views have an age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("load_seen", "load_there")
"""Columns of requests.parquet beside the others: requests at the chosen replica by its last report, and in truth, when
the request was sent there, the last time if several times; -1: it was sent to none."""


def view_columns(sendings: Sequence[int], rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return COLUMNS for requests with these row numbers, in their order."""
    last = {row: (seen, there) for row, seen, there in _table(sendings).tolist()}
    table = np.array([last.get(row, (-1, -1)) for row in rows.tolist()], dtype=np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def view_figures(sendings: Sequence[int]) -> dict[str, Any]:
    """Return the summary's `router_view`: how often a request was sent, and the means over those of the requests that
    its replica had by the last report, that it had in truth, and of the distance between the two. At least one was."""
    table = _table(sendings)
    seen, there = table[:, 1], table[:, 2]
    means = {"seen": seen, "there": there, "error": np.abs(seen - there)}
    return {"sent": len(table), **{name: float(of.mean()) for name, of in means.items()}}


def _table(sendings: Sequence[int]) -> NDArray[np.int64]:
    return np.array(sendings, dtype=np.int64).reshape(-1, 3)
