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
    early = (leaves - arrival)[: arrived[EARLY]]
    service = (leaves - waits).astype(np.float64)
    return Load(
        waiting=mean_between(arrival, waits, edges),
        in_system=mean_between(arrival, leaves, edges),
        arrived=arrived,
        explained=expected_present(arrived, span / TENTHS, early, np.ones(len(early), dtype=np.int64)),
        service_ns=shortest_mean(arrived, np.concatenate([[0.0], np.cumsum(service)])[arrived]),
        service_cv2=float(service.var()) / max(float(service.mean()), 1.0) ** 2,
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


def shortest_mean(arrived: Times, total: Floats) -> float:
    """Return the smallest of the tenths' means over their requests, given the number of requests and the sum of their
    values before each edge."""
    counts, sums = np.diff(arrived), np.diff(total)
    enough = counts >= max(1.0, FEW * counts.sum())
    return float((sums[enough] / counts[enough]).min())


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
