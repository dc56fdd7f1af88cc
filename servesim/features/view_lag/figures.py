"""The router's view of the replicas it chose compared with their true state, if views are delayed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group
from servesim.schemas import COUNT, NUMBER

COLUMNS = ("load_seen", "load_there")
"""Additional columns of requests.parquet: the number of requests at the chosen replica according to its last report,
and the true number, when the request was last sent to a replica; -1 if it was never sent."""


class Sendings(NamedTuple):
    """Sums over sendings."""

    sent: int
    seen: int
    there: int
    error: int
    """Sum of absolute differences."""


NO_SENDINGS = Sendings(0, 0, 0, 0)


def view_columns(sendings: Sequence[int], rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the values of COLUMNS for requests with these row numbers, in the same order."""
    last = {row: (seen, there) for row, seen, there in _table(sendings).tolist()}
    table = np.array([last.get(row, (-1, -1)) for row in rows.tolist()], dtype=np.int64).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, table.T, strict=True))


def parted(sendings: array[int], rows: NDArray[np.int64]) -> tuple[array[int], array[int]]:
    """Return the sendings of requests with these row numbers, and the others."""
    table = _table(sendings)
    mine = np.isin(table[:, 0], rows)
    return array("q", table[mine].tobytes()), array("q", table[~mine].tobytes())


def added(sums: Sendings, sendings: Sequence[int]) -> Sendings:
    """Return the sums with further sendings."""
    _, seen, there = _table(sendings).T
    more = (len(seen), int(seen.sum()), int(there.sum()), int(np.abs(seen - there).sum()))
    return Sendings(*(a + b for a, b in zip(sums, more, strict=True)))


ROUTER_VIEW = Group(
    "router_view",
    "router's view",
    (
        Figure("sent", "number of times that a request was sent to a replica", lambda sums: sums.sent, schema=COUNT),
        Figure("seen", "mean number of requests at the chosen replica according to its last report",
               lambda sums: sums.seen / sums.sent, "requests", NUMBER),
        Figure("there", "mean number of requests that were actually at the chosen replica",
               lambda sums: sums.there / sums.sent, "requests", NUMBER),
        Figure("error", "mean absolute difference between the reported and actual numbers of requests",
               lambda sums: sums.error / sums.sent, "requests", NUMBER),
    ),
    doc="Present if the router's view of the replicas is delayed (`cluster.report_every_s`).",
    rows=(
        ("router's view", (
            "{seen} requests seen at the chosen replica, {there} actually there, a mean difference of {error}"
        )),
    ),
)  # fmt: skip
"""Figures of `Sendings`, of which there must be at least one."""


def _table(sendings: Sequence[int]) -> NDArray[np.int64]:
    return np.array(sendings, dtype=np.int64).reshape(-1, 3)
