"""Load of a system while requests arrive: numbers of requests waiting and present in each tenth of the arrival span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TENTHS = 10
EARLY = 4
"""Number of tenths at the start whose requests show how long a stay lasts before a queue has built up."""
FEW = 0.03
"""Minimum share of all arrivals that a tenth needs to say anything about the time in service."""

Times = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """Load of a system over the arrival span, in tenths."""

    waiting: Floats
    """Mean number of requests waiting (not yet scheduled for the first time) in each tenth."""
    in_system: Floats
    arrived: Times
    """Number of arrivals before each of the eleven edges of the tenths."""
    explained: Floats
    """Mean number in the system in each tenth if stays were distributed as those of the first `EARLY` tenths are."""
    service_ns: float
    """Mean time from first being scheduled to the end, over the requests of the tenth in which this mean is
    smallest."""
    service_cv2: float
    """Squared coefficient of variation of the time in service, over all requests."""
    span_ns: int


def load_of(arrival: Times, waits: Times, leaves: Times) -> Load | None:
    """Return the load, from the times at which each request arrived (ascending), stopped waiting and left; None if they
    all arrive at the same time."""
    span = int(arrival[-1] - arrival[0]) if len(arrival) else 0
    if span < TENTHS:
        return None
    edges = arrival[0] + span * np.arange(TENTHS + 1) // TENTHS
    arrived = np.searchsorted(arrival, edges)
    arrived[-1] = len(arrival)
    early = (leaves - arrival)[: arrived[EARLY]]
    service = (leaves - waits).astype(np.float64)
    served = service > 0  # all but requests that left while they waited
    return Load(
        waiting=mean_between(arrival, waits, edges),
        in_system=mean_between(arrival, leaves, edges),
        arrived=arrived,
        explained=expected_present(arrived, span / TENTHS, early, np.ones(len(early), dtype=np.int64)),
        service_ns=shortest_mean(_before(served, arrived), _before(service, arrived)),
        service_cv2=squared_variation(int(served.sum()), float(service.sum()), float(np.dot(service, service))),
        span_ns=span,
    )


def mean_between(enter: Times, leave: Times, edges: Times) -> Floats:
    """Return the exact mean number present between successive edges: the integral of the number divided by the
    width."""
    width = np.diff(edges)
    stay = [
        np.maximum(np.minimum(leave, b) - np.maximum(enter, a), 0).sum(dtype=np.float64)
        for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.array(stay) / width


def _before(values: NDArray[Any], arrived: Times) -> Floats:
    """Return the sum of the values before each edge."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])[arrived]


def shortest_mean(served: Floats, total: Floats) -> float:
    """Return the smallest mean of a tenth's requests, given their number and total before each edge, or 0 if there are
    none. Tenths with fewer than `FEW` of the requests are left out."""
    counts, sums = np.diff(served), np.diff(total)
    enough = counts >= max(1.0, FEW * float(counts.sum()))
    return float((sums[enough] / counts[enough]).min()) if enough.any() else 0.0


def squared_variation(count: int, total: float, squares: float) -> float:
    """Return the squared coefficient of variation, given the number of values, their sum and the sum of squares."""
    return max(squares * count / total**2 - 1.0, 0.0) if total else 0.0


def expected_present(arrived: Times, width: float, stays: NDArray[Any], counts: NDArray[np.int64]) -> Floats:
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
