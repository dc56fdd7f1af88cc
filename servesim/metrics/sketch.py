"""A histogram that computes percentiles within a stated relative error in constant memory."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.distribution import PERCENTILES, Numbers, named

RELATIVE_ERROR = 0.001
"""Maximum relative error of a percentile, compared with the exact one interpolated between its two neighbors."""
_LOG_RATIO = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))


class Sketch:
    """Counts of non-negative values in buckets whose bounds grow geometrically (DDSketch: Masson et al., VLDB 2019).

    Count, minimum and maximum are exact; mean and standard deviation are exact except for rounding. Values below 1 (a
    nanosecond) other than 0 share the first bucket. Percentiles do not depend on the order of the values.
    """

    def __init__(self) -> None:
        self._zeros = 0
        self._counts = np.zeros(0, dtype=np.int64)  # bucket b holds values in (ratio^(b-1), ratio^b]
        self._first = 0  # bucket of counts[0]
        self._count = 0
        self._mean = self._squares = 0.0  # sum of squared deviations (Chan et al., 1979)
        self._low, self._high = math.inf, -math.inf

    def add(self, values: Numbers, counts: NDArray[np.int64] | None = None) -> None:
        """Add values, each once or `counts` times."""
        if counts is None:
            counts = np.ones(len(values), dtype=np.int64)
        total = int(counts.sum())
        if total == 0:
            return
        zeros = int(counts[values == 0].sum())
        self._zeros += zeros
        if zeros < total:
            rest = values > 0
            bucket = np.ceil(np.log(np.maximum(values[rest], 1)) / _LOG_RATIO).astype(np.int64)
            self._reach(int(bucket.min()), int(bucket.max()))
            np.add.at(self._counts, bucket - self._first, counts[rest])
        mean = float(np.dot(values, counts)) / total
        squares = float(np.dot((values - mean) ** 2, counts))
        both, shift = self._count + total, mean - self._mean
        self._squares += squares + shift * shift * self._count * total / both
        self._mean += shift * total / both
        self._count = both
        present = values[counts > 0]
        self._low, self._high = min(self._low, float(present.min())), max(self._high, float(present.max()))

    def _reach(self, low: int, high: int) -> None:
        """Extend the buckets to cover `low` to `high`."""
        if len(self._counts) and self._first <= low and high < self._first + len(self._counts):
            return
        if len(self._counts):
            low, high = min(low, self._first), max(high, self._first + len(self._counts) - 1)
        grown = np.zeros(high - low + 1, dtype=np.int64)
        grown[self._first - low :][: len(self._counts)] = self._counts
        self._counts, self._first = grown, low

    def describe(self, unit: float = 1.0) -> dict[str, float] | None:
        """Describe the values, each divided by `unit`, as `distribution.describe` does; return None if there are
        none."""
        if self._count == 0:
            return None
        ends = self._zeros + np.cumsum(self._counts)
        percentiles = [self._percentile(ends, q) / unit for q in PERCENTILES]
        std = math.sqrt(self._squares / self._count)
        return named(self._count, self._mean / unit, std / unit, percentiles, self._low / unit, self._high / unit)

    def _percentile(self, ends: NDArray[np.int64], q: float) -> float:
        position = (self._count - 1) * (q / 100)
        low = math.floor(position)
        a, b = self._at(ends, low), self._at(ends, min(low + 1, self._count - 1))
        return a + (b - a) * (position - low)

    def _at(self, ends: NDArray[np.int64], rank: int) -> float:
        """Return the value at a rank, counted from 0."""
        if rank < self._zeros:
            return 0.0
        return self._middle(int(np.searchsorted(ends, rank, side="right")))

    def _middle(self, index: int) -> float:
        """Return the point of a bucket with the smallest relative distance to both bounds."""
        middle = math.exp((self._first + index) * _LOG_RATIO) * (1 - RELATIVE_ERROR)
        return min(max(middle, self._low), self._high)

    def buckets(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the added values, ascending and each within the relative error, and their counts."""
        values = [0.0, *(self._middle(index) for index in range(len(self._counts)))]
        return np.array(values), np.concatenate([[self._zeros], self._counts])
