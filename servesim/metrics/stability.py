"""Whether the queue still grows when the arrivals end: then percentiles say how long the trace was, not more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.engine.request import State
from servesim.metrics.requests import RequestColumns

TENTHS = 10
RISING = 3
"""Tenths of the arrival span, counted from its end, through which the number must rise."""

Times = NDArray[np.int64]


def stability(columns: RequestColumns) -> dict[str, Any]:
    """The verdict and what it rests on: mean numbers waiting and in the system in tenths of the arrival span.

    Unstable is a run in which the number waiting (not yet scheduled for the first time) rises through the last
    three tenths and is there higher than in some earlier tenth by at least max(10, 2 %, 2 sqrt) of the requests
    that arrived in between: more than the chance wandering of a queue below capacity, which is of the order of the
    square root. Engines that admit everybody and slow down show it in the number in the system instead; there
    only the second half counts, once it is three times the mean time in service, so that the filling
    of an empty server is not taken for growth.
    """
    table = columns.table
    kept = np.flatnonzero(table["state"] != State.REJECTED)
    kept = kept[np.argsort(table["arrival_ns"][kept], kind="stable")]  # closed loops send out of the trace's order
    arrival = table["arrival_ns"][kept]
    leaves = np.where(table["state"] == State.ABORTED, table["finished_ns"], table["last_token_ns"])[kept]
    waits = np.where(table["scheduled_ns"] < 0, table["finished_ns"], table["scheduled_ns"])[kept]
    span = int(arrival[-1] - arrival[0]) if len(arrival) else 0
    if span < TENTHS:
        return {"unstable": False, "waiting_by_tenth": None, "in_system_by_tenth": None}
    edges = arrival[0] + span * np.arange(TENTHS + 1) // TENTHS
    waiting = mean_between(arrival, waits, edges)
    in_system = mean_between(arrival, leaves, edges)
    arrived = np.searchsorted(arrival, edges)
    settled = float((leaves - waits).mean()) * 3 <= span / 2
    return {
        "unstable": _grows(waiting, arrived, TENTHS) or (settled and _grows(in_system, arrived, TENTHS // 2)),
        "waiting_by_tenth": waiting.tolist(),
        "in_system_by_tenth": in_system.tolist(),
    }


def mean_between(enter: Times, leave: Times, edges: Times) -> NDArray[np.float64]:
    """Mean number present between successive edges, exactly: the integral of the number over the width."""
    width = np.diff(edges)
    stay = [
        np.maximum(np.minimum(leave, b) - np.maximum(enter, a), 0).sum(dtype=np.float64)
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.array(stay) / width


def _grows(number: NDArray[np.float64], arrived: Times, tenths: int) -> bool:
    """Whether growth shows in the last `tenths`; `arrived` counts arrivals before each edge."""
    if not (np.diff(number[-RISING:]) > 0).all():
        return False
    for since in range(TENTHS - tenths, TENTHS - RISING + 1):
        arrivals = int(arrived[TENTHS] - arrived[since])
        if number[-1] - number[since] >= max(10.0, 0.02 * arrivals, 2.0 * arrivals**0.5):
            return True
    return False
