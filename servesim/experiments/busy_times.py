"""Share of good requests over the course of a run: the worst window of a given length, and the confidence interval of
its share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.statistics import block_length
from servesim.workload.peak import MINUTE_NS


class Window(NamedTuple):
    """Requests that arrived within a window of a few minutes."""

    minute: float
    """Time of the window's first arrival, in minutes after the first arrival of the run."""
    minutes: float
    requests: int
    share: float
    """Share of the window's requests that were good."""
    low: float
    high: float
    """Bounds of the share's 95 % interval. Good requests come in streaks, so the interval depends on how long these
are."""


def worst_window(arrival_ns: NDArray[np.float64], good: NDArray[np.bool_], minutes: float, least: int) -> Window | None:
    """Return the window with the lowest share of good requests, among windows of `minutes` that begin with an arrival
    and hold at least `least` requests. Return None if no window holds that many, or if a single window holds all
    requests."""
    order = np.argsort(arrival_ns, kind="stable")
    arrival, good = arrival_ns[order], good[order]
    n = len(arrival)
    first = np.searchsorted(arrival, arrival)
    last = np.searchsorted(arrival, arrival + minutes * MINUTE_NS)
    count = last - first
    usable = np.flatnonzero(count >= max(least, 1))
    if not len(usable) or count[0] == n:
        return None
    sums = np.concatenate(([0], np.cumsum(good)))
    shares = (sums[last[usable]] - sums[first[usable]]) / count[usable]
    at = int(first[usable[np.argmin(shares)]])
    inside = good[at : last[at]].astype(np.float64)
    low, high = share_interval(inside)
    return Window(float((arrival[at] - arrival[0]) / MINUTE_NS), minutes, len(inside), float(inside.mean()), low, high)


def window_note(name: str, window: Mapping[str, Any], share: float) -> str:
    """Return a note on the worst window of a deployment (a `Window` as a mapping). `share` is the required share of
    good requests."""
    return (
        f"{name}: in its worst {window['minutes']:g} minutes, starting at minute {window['minute']:.0f}, "
        f"{100 * window['share']:.4g} % of {window['requests']:,} requests are within the limits (95 % interval "
        f"{100 * window['low']:.4g} to {100 * window['high']:.4g} %; {100 * share:g} % required)"
    )


def minute_note(name: str, minute: Mapping[str, Any]) -> str:
    """Return a note on the worst minute of a deployment."""
    return (
        f"{name}: one bad minute, starting at minute {minute['minute']:.0f}: {100 * minute['share']:.3g} % of its "
        f"{minute['requests']:,} requests are within the limits"
    )


def share_interval(good: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share among successive requests. The sample size is the effective number of
    independent requests: the number of requests divided by the length of the blocks within which they are
    correlated."""
    n = max(len(good) / block_length(good), 1.0)
    p, z2 = float(good.mean()), 1.96**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = 1.96 * float(np.sqrt(p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(centre - half, 0.0), min(centre + half, 1.0)
