"""Steps that differ in their contexts alone: all their passes priced at once, over the sums of the contexts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Host
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve, rounded


class Pass(NamedTuple):
    """A pass of a model over a step's batch."""

    base: float
    """The part that does not depend on contexts, in ns."""
    parts: list[float]
    """That part by source."""
    curve: Curve | None
    """Attention over the sum of its contexts; None: it attends nothing."""
    shift: int
    """The difference between that sum and the step's context sum."""


class OverContexts:
    """Nanoseconds of steps over sums of contexts, each pass rounded on its own, equal to `curve.rounded` to the last
    bit."""

    def __init__(self, passes: Sequence[Pass], host: Host) -> None:
        self.host = host
        self._passes = passes
        self._constant = sum(int(each.base + 0.5) for each in passes if each.curve is None)
        self._attending = [(each.base, each.curve, each.shift) for each in passes if each.curve is not None]
        self._low = self._high = 0  # where every pass stays within the segment of its curve it is in now
        self._shift = np.array([[shift] for _, _, shift in self._attending], dtype=np.int64)
        self._start = self._begin = self._slope = self._base = np.empty((len(self._attending), 1))
        self._whole = True

    def one(self, context: int) -> tuple[int, tuple[float, float, float, float]]:
        """Return the nanoseconds at one context sum, and their split by source."""
        ns = 0
        a = b = c = d = 0.0
        for base, parts, curve, shift in self._passes:
            p, q, r, s = parts
            if curve is None:
                ns += int(base + 0.5)
            else:
                start, y, slope, source = curve.piece(context + shift)
                rise = (context + shift - start) * slope
                ns += rounded(base, y, rise)
                if source == MEASURED:
                    p += y + rise
                elif source == INTERPOLATED:
                    q += y + rise
                elif source == EXTRAPOLATED:
                    r += y + rise
                else:
                    s += y + rise
            a, b, c, d = a + p, b + q, c + r, d + s
        return ns, (a, b, c, d)

    def at(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds at non-decreasing context sums."""
        first, last = int(contexts[0]), int(contexts[-1])
        if not self._low <= first < self._high:
            self._seek(first)
        if last < self._high:
            return self._within(contexts)
        cut = int(np.searchsorted(contexts, self._high))
        return np.concatenate((self._within(contexts[:cut]), self.at(contexts[cut:])))

    def _seek(self, context: int) -> None:
        pieces = []
        low, high = 0.0, inf
        for base, curve, shift in self._attending:
            i = bisect_right(curve.xs, context + shift) - 1
            start = curve.xs[i]
            pieces.append(((start,), (curve.slopes[i],), (base + curve.ys[i] + 0.5,)))
            low = max(low, ceil(start) - shift)
            if i + 1 < len(curve.xs):
                high = min(high, ceil(curve.xs[i + 1]) - shift)
        self._low, self._high = int(low), int(min(high, 1 << 62))
        if pieces:
            self._start, self._slope, self._base = (np.array(column) for column in zip(*pieces, strict=True))
            self._begin = self._start - self._shift
            self._whole = all(start.is_integer() for (start,), *_ in pieces)

    def _within(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        # where knots are whole numbers differences are exact, wherever they are taken
        times = contexts - self._begin if self._whole else contexts + self._shift - self._start
        times *= self._slope
        times += self._base
        total: NDArray[np.int64] = np.add.reduce(times.astype(np.int64), 0)
        if self._constant:
            total += self._constant
        return total
