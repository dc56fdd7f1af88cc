"""Test of whether the queue is still growing when arrivals end; if it is, percentiles depend on the trace's length."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group, Summary
from servesim.schemas import FLAG, NUMBER, a_list, or_null

if TYPE_CHECKING:
    from servesim.metrics.requests import Requests

TENTHS = 10
RISING = 3
"""Number of tenths at the end of the arrival span over which the number of requests must keep rising."""

GROWING = "the queue was still growing when arrivals ended; latencies depend on the trace's length"
"""Meaning of an unstable run."""

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """Load of a system over the arrival span, in tenths."""

    waiting: NDArray[np.float64]
    """Mean number of requests waiting (not yet scheduled for the first time) in each tenth."""
    in_system: NDArray[np.float64]
    arrived: NDArray[np.int64]
    """Number of arrivals before each of the eleven edges of the tenths."""
    filling: NDArray[np.float64]
    """Mean number that would be in the system in each tenth if the stays of its arrivals were distributed as in the
    whole run."""
    service_ns: float
    """Mean time from the first scheduling to the end."""
    span_ns: int


def load_of(arrival: Times, waits: Times, leaves: Times) -> Load | None:
    """Return the load, from the times at which each request arrived (ascending), stopped waiting and left; None if they
    all arrive at the same time."""
    span = int(arrival[-1] - arrival[0]) if len(arrival) else 0
    if span < TENTHS:
        return None
    edges = arrival[0] + span * np.arange(TENTHS + 1) // TENTHS
    waiting, in_system = mean_between(arrival, waits, edges), mean_between(arrival, leaves, edges)
    arrived = np.searchsorted(arrival, edges)
    filling = expected_present(arrived, span / TENTHS, leaves - arrival, np.ones(len(arrival), dtype=np.int64))
    return Load(waiting, in_system, arrived, filling, float((leaves - waits).mean()), span)


def stability(requests: Requests) -> dict[str, Any]:
    """Return the verdict and its basis: mean numbers waiting and in the system in tenths of the arrival span.

    A run is unstable if the number waiting (not yet scheduled for the first time) rises through the last three tenths
    and ends higher than in some earlier tenth by at least max(10, 2 % of n, 2 sqrt(n)), where n is the number of
    requests that arrived in between. This is more than the random fluctuation of a queue below capacity, which is of
    the order of the square root. Engines that admit every request and slow down show growth in the number in the system
    instead. There, only the second half counts, and the growth expected from an empty server that fills up is
    subtracted first: the number that the same arrivals would give if each stayed as long as those observed
    (`expected_present`). If nothing grows, and half the span is less than three times the mean time in service, the
    trace is too short to decide, and the verdict is "undecided".
    """
    load = requests.load()
    if load is None:
        return {"unstable": False, "decided": True, "waiting_by_tenth": None, "in_system_by_tenth": None}
    settled = load.service_ns * 3 <= load.span_ns / 2
    unstable = _grows(load.waiting, load.arrived, TENTHS)
    unstable = unstable or _grows(load.in_system - load.filling, load.arrived, TENTHS // 2)
    return {
        "unstable": unstable,
        "decided": unstable or settled,
        "waiting_by_tenth": load.waiting.tolist(),
        "in_system_by_tenth": load.in_system.tolist(),
    }


def _queue(summary: Summary) -> str:
    found = summary["stability"]
    if not summary["requests"]["completed"]:
        return "none: nothing was served"
    if found["unstable"]:
        return "UNSTABLE"
    return "stable" if found["decided"] else "undecided: the trace is too short to tell"


BY_TENTH = or_null(a_list(NUMBER))
STABILITY = Group(
    "stability",
    "queue",
    (
        Figure("unstable", "whether the queue was still growing when arrivals ended", itemgetter("unstable"),
               schema=FLAG),
        Figure("decided",
               "false if the trace is too short to tell: the queue is not growing, but arrivals span less than six "
               "times the mean time in service", itemgetter("decided"), schema=FLAG),
        Figure("waiting_by_tenth", "mean number waiting in tenths of the arrival span", itemgetter("waiting_by_tenth"),
               schema=BY_TENTH),
        Figure("in_system_by_tenth",
               "mean number in the system in tenths of the arrival span; the growth expected from an empty server that "
               "fills up is subtracted before the verdict", itemgetter("in_system_by_tenth"), schema=BY_TENTH),
    ),
    doc=(
        "Latencies of an unstable run depend on the trace's length. Runs of fewer than about 500 requests can hardly "
        "be judged."
    ),
    rows=(("queue", _queue),),
    source=lambda m: stability(m.requests),
)  # fmt: skip


def mean_between(enter: Times, leave: Times, edges: Times) -> NDArray[np.float64]:
    """Return the exact mean number present between successive edges: the integral of the number over the width."""
    width = np.diff(edges)
    stay = [
        np.maximum(np.minimum(leave, b) - np.maximum(enter, a), 0).sum(dtype=np.float64)
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.array(stay) / width


def expected_present(
    arrived: Times, width: float, stays: NDArray[Any], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean number present in each tenth of a span if arrivals, spread evenly within a tenth, stay `stays[i]`
    with weight `counts[i]`, regardless of their time of arrival.

    `arrived`: arrivals before each of the eleven edges, `width` apart; `stays` in the same unit. An arrival that stays
    S is present for min(S, t) of the next t; H(t) is the mean over S of its integral up to t, and the arrivals of a
    tenth are present d tenths later in proportion to the second difference of H there.
    """
    weight = counts / counts.sum()
    integrals = [0.0, 0.0]
    for t in width * np.arange(1, TENTHS + 1):
        inside = np.minimum(stays, t)
        integrals.append(float(np.dot(weight, inside * (t - inside / 2))))
    later = np.diff(integrals, 2) / width**2
    return np.convolve(np.diff(arrived), later)[:TENTHS]


def _grows(number: NDArray[np.float64], arrived: Times, tenths: int) -> bool:
    """Return whether the last `tenths` show growth; `arrived` counts arrivals before each edge."""
    if not (np.diff(number[-RISING:]) > 0).all():
        return False
    for since in range(TENTHS - tenths, TENTHS - RISING + 1):
        arrivals = int(arrived[TENTHS] - arrived[since])
        if number[-1] - number[since] >= max(10.0, 0.02 * arrivals, 2.0 * arrivals**0.5):
            return True
    return False
