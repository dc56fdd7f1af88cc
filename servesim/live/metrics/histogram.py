"""Histogram with fixed buckets, as Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import utils

NS = 1_000_000_000


class Histogram:
    """Counts of values up to each of several bounds. Values are counted in units of which `scale` make one unit of the
    bounds, so that times in ns add up exactly."""

    __slots__ = ("_names", "_tops", "count", "counts", "scale", "sum")

    def __init__(self, bounds: Sequence[float], scale: int = 1) -> None:
        self.scale = scale
        name_of: Any = utils.floatToGoString
        self._names: list[str] = [name_of(bound) for bound in bounds]
        self._tops = [round(bound * scale) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each bucket; the last one has no upper bound."""
        self.count = 0
        self.sum: float = 0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value `count` times; a value equal to a bound is in its bucket."""
        self.counts[bisect_left(self._tops, value)] += count
        self.count += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of values up to it), as the text format has them."""
        found, total = [], 0
        for name, count in zip([*self._names, "+Inf"], self.counts, strict=True):
            total += count
            found.append((name, float(total)))
        return found

    @property
    def total(self) -> float:
        """Sum of all values in the unit of the bounds."""
        return self.sum / self.scale

    def and_others(self, others: Iterable[Histogram]) -> Histogram:
        """Return the histogram of its values and those of others with the same bounds."""
        both = Histogram((), self.scale)
        both._names, both._tops, both.counts = self._names, self._tops, list(self.counts)
        both.count, both.sum = self.count, self.sum
        for other in others:
            both.counts = [a + b for a, b in zip(both.counts, other.counts, strict=True)]
            both.count += other.count
            both.sum += other.sum
        return both
