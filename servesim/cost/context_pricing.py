"""Steps that differ only in their contexts, with all passes priced together as functions of the sum of the contexts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Host, Sources
from servesim.cost.curve import Curve, rounded, whole


class Pass(NamedTuple):
    """A pass of a model over a step's batch."""

    base: float
    """Part of the time that does not depend on contexts, in ns."""
    parts: list[float]
    """That context-independent part, split by source."""
    curve: Curve | None
    """Attention time as a function of the pass's sum of contexts, or None if the pass has no attention."""
    shift: int
    """Sum of contexts of the pass minus that of the step."""


class OverContexts:
    """Nanoseconds of steps as a function of their context sums. Each pass is rounded separately, and the results equal
    `curve.rounded` to the last bit."""

    def __init__(self, passes: Sequence[Pass], host: Host) -> None:
        self.host = host
        self._passes = passes
        self._constant = sum(int(each.base + 0.5) for each in passes if each.curve is None)
        splits = [(whole(each.base, each.parts), each.curve) for each in passes]
        self._fixed = [sum(sources[i] for (sources, _), _ in splits) for i in range(4)]
        """Time of all passes by source, without attention. The time of a pass minus its known part is then added to the
        source of its attention."""
        self._known = [known for (_, known), curve in splits if curve is not None]
        self._attending = [(each.base, each.curve, each.shift) for each in passes if each.curve is not None]
        self._low = self._high = 0  # range in which each pass stays in its curve segment
        self._shift = np.array([[shift] for _, _, shift in self._attending], dtype=np.int64)
        self._start = self._begin = self._slope = self._base = np.empty((len(self._attending), 1))
        self._whole = True
        self._segments: list[int] = []
        """Sources of the passes' curve segments within the current range."""

    def one(self, context: int) -> tuple[int, Sources]:
        """Return the nanoseconds at one context sum, and their split by source."""
        ns = 0
        sums = self._fixed.copy()
        for (base, curve, shift), known in zip(self._attending, self._known, strict=True):
            start, y, slope, source = curve.piece(context + shift)
            own = rounded(base, y, (context + shift - start) * slope)
            ns += own
            sums[source] += own - known
        a, b, c, d = sums
        return ns + self._constant, (a, b, c, d)

    def sources(self, contexts: NDArray[np.int64], gpu: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the split by source of `gpu`, the nanoseconds at non-decreasing context sums, of shape (sums, 4)."""
        found = np.empty((len(contexts), 4), dtype=np.int64)
        found[:] = self._fixed
        within = self._low <= contexts[0] and contexts[-1] < self._high and len(self._segments) == 1
        if within and not (contexts == self._begin).any():
            found[:, self._segments[0]] += gpu - (self._constant + sum(self._known))
            return found
        at = np.arange(len(contexts))
        for (base, curve, shift), known in zip(self._attending, self._known, strict=True):
            times, source = curve.rounded_at(base, contexts + shift)
            found[at, source] += times - known
        return found

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
        pieces, sources = [], set()
        low, high = 0.0, inf
        for base, curve, shift in self._attending:
            i = bisect_right(curve.xs, context + shift) - 1
            start = curve.xs[i]
            pieces.append(((start,), (curve.slopes[i],), (base + curve.ys[i] + 0.5,)))
            sources.add(curve.segment_source[i])
            low = max(low, ceil(start) - shift)
            if i + 1 < len(curve.xs):
                high = min(high, ceil(curve.xs[i + 1]) - shift)
        self._low, self._high = int(low), int(min(high, 1 << 62))
        self._segments = sorted(sources)
        if pieces:
            self._start, self._slope, self._base = (np.array(column) for column in zip(*pieces, strict=True))
            self._begin = self._start - self._shift
            self._whole = all(start.is_integer() for (start,), *_ in pieces)

    def _within(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        # if knots are whole numbers, differences are exact, however they are computed
        times = contexts - self._begin if self._whole else contexts + self._shift - self._start
        times *= self._slope
        times += self._base
        total: NDArray[np.int64] = np.add.reduce(times.astype(np.int64), 0)
        if self._constant:
            total += self._constant
        return total
