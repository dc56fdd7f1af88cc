"""Steps that differ only in their contexts, with all passes priced together as functions of the sum of the contexts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Host, Sources, Split
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


class Segment:
    """Range of context sums, from `low` to below `high`, in which each pass stays in its curve segment."""

    __slots__ = ("base", "begin", "by_source", "high", "knots", "lines", "low", "slope", "sources", "start", "whole")

    def __init__(self, attending: Sequence[tuple[float, Curve, int]], low: int, high: int) -> None:
        pieces = []
        of_passes = []
        for base, curve, shift in attending:
            i = bisect_right(curve.xs, low + shift) - 1
            pieces.append((curve.xs[i], curve.slopes[i], base + curve.ys[i] + 0.5, shift))
            of_passes.append(curve.segment_source[i])
        self.low, self.high = low, high
        self.sources = sorted(set(of_passes))
        """Sources of the passes' curve segments."""
        self.lines = [
            (shift, start, constant, slope, source)
            for (start, slope, constant, shift), source in zip(pieces, of_passes, strict=True)
        ]
        """Line of each pass: the number added to the sum of contexts, the beginning of its curve's segment, the time
        there plus a half, its slope, and its source."""
        self.knots = frozenset(start - shift for start, _, _, shift in pieces)
        """Context sums at which a pass is at a knot."""
        self.whole = all(start.is_integer() for start, *_ in pieces)
        table = np.array(pieces, dtype=np.float64).reshape(-1, 4)
        self.start, self.slope, self.base = table[:, 0:1], table[:, 1:2], table[:, 2:3]
        self.begin = self.start - table[:, 3:4]
        self.by_source = np.zeros((len(pieces), 4), dtype=np.int64)
        """1 for the source of each pass's attention."""
        for row, source in enumerate(of_passes):
            self.by_source[row, source] = 1


class OverContexts:
    """Nanoseconds of steps as a function of their context sums. Each pass is rounded separately, and the results equal
    `curve.rounded` to the last bit."""

    def __init__(self, passes: Sequence[Pass], host: Host) -> None:
        self.host = host
        self._passes = passes
        self._constant = sum(int(each.base + 0.5) for each in passes if each.curve is None)
        splits = [(whole(each.base, each.parts), each.curve) for each in passes]
        a, b, c, d = (sum(sources[i] for (sources, _), _ in splits) for i in range(4))
        self._fixed: Sources = (a, b, c, d)
        """Time of all passes by source, without attention. The time of a pass minus its known part is then added to the
        source of its attention."""
        self._known = [known for (_, known), curve in splits if curve is not None]
        self._attending = [(each.base, each.curve, each.shift) for each in passes if each.curve is not None]
        self._shift = np.array([[shift] for _, _, shift in self._attending], dtype=np.int64)
        knots = {ceil(x) - shift for _, curve, shift in self._attending for x in curve.xs}
        self._knots = sorted(knot for knot in knots if knot > 0)
        self._segments: dict[int, Segment] = {}
        self._splits: dict[int, Split] = {}  # by source of the attention

    def one(self, context: int) -> tuple[int, Sources]:
        """Return the nanoseconds at one context sum, and their split by source."""
        ns = 0
        sums = [*self._fixed]
        segment = self._segment(context)
        if context not in segment.knots:
            for (shift, start, constant, slope, source), known in zip(segment.lines, self._known, strict=True):
                own = int(constant + (context + shift - start) * slope)
                ns += own
                sums[source] += own - known
            a, b, c, d = sums
            return ns + self._constant, (a, b, c, d)
        for (base, curve, shift), known in zip(self._attending, self._known, strict=True):
            start, y, slope, source, _ = curve.piece(context + shift)
            own = rounded(base, y, (context + shift - start) * slope)
            ns += own
            sums[source] += own - known
        a, b, c, d = sums
        return ns + self._constant, (a, b, c, d)

    def price(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], Split | NDArray[np.int64]]:
        """Return the nanoseconds at non-decreasing context sums and their split by source, of shape (sums, 4) where
        their attention has several sources."""
        first = int(contexts[0])
        segment = self._segment(first)
        if int(contexts[-1]) >= segment.high or first in segment.knots or len(segment.sources) > 1:
            return self._across(contexts)
        (source,) = segment.sources or (0,)
        if source not in self._splits:
            self._splits[source] = Split(self._fixed, source, self._constant + sum(self._known))
        return self._sum(self._within(segment, contexts)), self._splits[source]

    def _across(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what `price` does for sums in several segments, at a knot, or with several sources."""
        gpu, split = [], []
        known, fixed = np.array(self._known, dtype=np.int64)[:, None], np.array(self._fixed, dtype=np.int64)
        while len(contexts):
            first = int(contexts[0])
            segment = self._segment(first)
            stop = int(contexts.searchsorted(segment.high))
            times = self._within(segment, contexts[:stop])
            gpu.append(self._sum(times))
            split.append((times - known).T @ segment.by_source + fixed)
            if first in segment.knots:  # no later sum is
                split[-1][: contexts.searchsorted(first, "right")] = self.one(first)[1]
            contexts = contexts[stop:]
        return np.concatenate(gpu), np.concatenate(split)

    def _segment(self, context: int) -> Segment:
        i = bisect_right(self._knots, context)
        segment = self._segments.get(i)
        if segment is None:
            knots = self._knots
            low, high = knots[i - 1] if i else 0, knots[i] if i < len(knots) else 1 << 62
            segment = self._segments[i] = Segment(self._attending, low, high)
        return segment

    def _within(self, segment: Segment, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds of each pass with attention, of shape (passes, sums)."""
        # if knots are whole numbers, differences are exact, however they are computed
        times = contexts - segment.begin if segment.whole else contexts + self._shift - segment.start
        times *= segment.slope
        times += segment.base
        return times.astype(np.int64)

    def _sum(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds of all passes."""
        total: NDArray[np.int64] = np.add.reduce(times, 0)
        if self._constant:
            total += self._constant
        return total
