"""The busiest minutes of a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MINUTE_NS = 60_000_000_000
WIDTH_NS = 5 * MINUTE_NS
LEAST = 50
"""Requests in the busiest window from which on it says something: chance alone makes twice the mean of fewer."""
TIMES = 2.0
"""Times the mean rate from which on it is a peak."""


def busiest(arrival_ns: NDArray[np.int64], width_ns: int = WIDTH_NS) -> tuple[int, int]:
    """Return start in ns and requests of the window that holds most of them, the first of equals. Arrivals ascend."""
    counts = np.searchsorted(arrival_ns, arrival_ns + width_ns) - np.arange(len(arrival_ns))
    at = int(np.argmax(counts))
    return int(arrival_ns[at]), int(counts[at])


def peak_note(arrival_ns: NDArray[np.int64]) -> str | None:
    """Return one line where the busiest five minutes run at over twice the mean rate; None for a trace without such a
    peak, shorter than six such windows, or too small to tell."""
    arrival = np.sort(arrival_ns)
    span = int(arrival[-1] - arrival[0]) if len(arrival) else 0
    if span < 6 * WIDTH_NS:
        return None
    start, most = busiest(arrival)
    times = most / WIDTH_NS / ((len(arrival) - 1) / span)
    if most < LEAST or times < TIMES:
        return None
    minutes = (start - int(arrival[0])) / MINUTE_NS
    return f"peak: the busiest five minutes, from minute {minutes:.0f}, run at {times:.1f} times the mean rate"
