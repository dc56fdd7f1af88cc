"""The busiest minutes of a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MINUTE_NS = 60_000_000_000
WIDTH_NS = 5 * MINUTE_NS
LEAST = 50
"""Minimum number of requests in the busiest window for a peak to be meaningful: with fewer, chance alone can produce
twice the mean."""
TIMES = 2.0
"""Minimum ratio to the mean rate for a window to count as a peak."""


def busiest(arrival_ns: NDArray[np.int64], width_ns: int = WIDTH_NS) -> tuple[int, int]:
    """Return the start in ns and the request count of the busiest window (the first one if tied). Arrivals must be in
    ascending order."""
    counts = np.searchsorted(arrival_ns, arrival_ns + width_ns) - np.arange(len(arrival_ns))
    at = int(np.argmax(counts))
    return int(arrival_ns[at]), int(counts[at])


def peak_note(arrival_ns: NDArray[np.int64]) -> str | None:
    """Return a one-line message if the rate in the busiest five minutes is over twice the mean. Return None if there is
    no such peak, or if the trace is shorter than six such windows or too small to tell."""
    arrival = np.sort(arrival_ns)
    span = int(arrival[-1] - arrival[0]) if len(arrival) else 0
    if span < 6 * WIDTH_NS:
        return None
    start, most = busiest(arrival)
    times = most / WIDTH_NS / ((len(arrival) - 1) / span)
    if most < LEAST or times < TIMES:
        return None
    minutes = (start - int(arrival[0])) / MINUTE_NS
    return f"peak: the busiest five minutes, starting at minute {minutes:.0f}, have {times:.1f} times the mean rate"
