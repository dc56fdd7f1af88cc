"""Statistics of values, with or without counts; percentiles use linear interpolation, as in `numpy.percentile`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)

Numbers = NDArray[np.int64] | NDArray[np.float64]


def describe(values: Numbers, unit: float = 1.0) -> dict[str, float] | None:
    """Return count, mean, std (of the population), min, max and percentiles of `values`, each divided by `unit`.

    Return None if there are no values, because any number would be misleading.
    """
    if len(values) == 0:
        return None
    scaled = values / unit
    percentiles = np.percentile(scaled, PERCENTILES).tolist()
    return named(len(values), float(scaled.mean()), float(scaled.std()), percentiles, scaled.min(), scaled.max())


class Values:
    """Values that are added in pieces and kept, to be described exactly; `Sketch` has the same methods."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[Any]] = []

    def add(self, values: Numbers) -> None:
        """Add values."""
        self._pieces.append(values)

    def describe(self, unit: float = 1.0) -> dict[str, float] | None:
        """Describe the values, each divided by `unit`; return None if there are none."""
        return describe(np.concatenate(self._pieces), unit) if self._pieces else None


def describe_counted(values: Numbers, counts: NDArray[np.int64], unit: float = 1.0) -> dict[str, float] | None:
    """Describe the multiset that holds `values[i]` `counts[i]` times, without expanding it."""
    present = counts > 0
    order = np.argsort(values[present], kind="stable")
    scaled, counts = values[present][order] / unit, counts[present][order]
    total = int(counts.sum())
    if total == 0:
        return None
    mean = float(np.dot(scaled, counts)) / total
    std = math.sqrt(float(np.dot((scaled - mean) ** 2, counts)) / total)
    ends = np.cumsum(counts)
    percentiles = [_percentile(scaled, ends, total, q) for q in PERCENTILES]
    return named(total, mean, std, percentiles, scaled[0], scaled[-1])


def _percentile(values: Numbers, ends: NDArray[np.int64], total: int, q: float) -> float:
    """Return a percentile by numpy's linear method; like numpy, interpolate from the nearer neighbor, so that results
    agree to the last bit."""
    position = (total - 1) * (q / 100)
    low = math.floor(position)
    a = float(values[np.searchsorted(ends, low, side="right")])
    b = float(values[np.searchsorted(ends, min(low + 1, total - 1), side="right")])
    t = position - low
    return b - (b - a) * (1 - t) if t >= 0.5 else a + (b - a) * t


def named(count: int, mean: float, std: float, percentiles: list[float], low: float, high: float) -> dict[str, float]:
    named = {f"p{q:g}": value for q, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"count": count, "mean": mean, "std": std, "min": float(low), **named, "max": float(high)}
