"""The router's view of the replicas it chose compared with their true state, if views are delayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group
from servesim.schemas import COUNT, NUMBER

COLUMNS = ("load_seen", "load_there")
"""Additional columns of requests.parquet: the number of requests at the chosen replica according to its last report,
and the true number, when the request was last sent to a replica; -1 if it was never sent."""


def view_columns(sendings: Sequence[int], rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the values of COLUMNS for requests with these row numbers, in the same order."""
    last = {row: (seen, there) for row, seen, there in _table(sendings).tolist()}
    table = np.array([last.get(row, (-1, -1)) for row in rows.tolist()], dtype=np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def _mean(values: Any) -> float:
    return float(values.mean())


ROUTER_VIEW = Group(
    "router_view",
    "router's view",
    (
        Figure("sent", "number of times that a request was sent to a replica", len, schema=COUNT),
        Figure("seen", "mean number of requests at the chosen replica according to its last report",
               lambda table: _mean(table[:, 1]), "requests", NUMBER),
        Figure("there", "mean number of requests that were actually at the chosen replica",
               lambda table: _mean(table[:, 2]), "requests", NUMBER),
        Figure("error", "mean absolute difference between the reported and actual numbers of requests",
               lambda table: _mean(np.abs(table[:, 1] - table[:, 2])), "requests", NUMBER),
    ),
    doc="Present if the router's view of the replicas is delayed (`cluster.report_every_s`).",
    rows=(
        ("router's view", (
            "{seen} requests seen at the chosen replica, {there} actually there, a mean difference of {error}"
        )),
    ),
)  # fmt: skip


def view_figures(sendings: Sequence[int]) -> dict[str, Any]:
    """Return the summary's `router_view`; there must be at least one sending."""
    return ROUTER_VIEW.values(_table(sendings))


def _table(sendings: Sequence[int]) -> NDArray[np.int64]:
    return np.array(sendings, dtype=np.int64).reshape(-1, 3)
