"""Piecewise-linear times, in which the cost of every operator is looked up during a simulation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Times

MEASURED, INTERPOLATED, EXTRAPOLATED, ROOFLINE = range(4)
"""Sources of a time, in the order of `Price.shares`: a measured point; interpolation between measured points;
extrapolation beyond them, at the share of the roofline reached at the edge; a formula, without a measurement."""

_VECTOR_FROM = 10
"""Number of points from which numpy is faster than a Python loop."""
_LIST_TO = 12
"""Number of points up to which a Python loop is faster than numpy if a list is needed."""
_MANY = 32
"""Number of points from which whole runs of steps are handled faster as arrays."""


def rounded(base: float, y: float, rise: float) -> int:
    """Return base + y + rise rounded to the nearest integer. The parts that are constant along a segment are added
    first, in scalar and vector code alike."""
    return int((base + y + 0.5) + rise)


def whole(ns: float, parts: Sequence[float]) -> tuple[list[int], int]:
    """Return the parts of `ns` by source in whole nanoseconds, and how much of `ns` they account for together with the
    time added by a lowered clock, which is in no part. The rest of a step's time is its attention."""
    a, b, c, d = parts
    found = [int(a + 0.5), int(b + 0.5), int(c + 0.5), int(d + 0.5)]
    lowered = int(ns - (a + b + c + d) + 0.5)
    return found, found[0] + found[1] + found[2] + found[3] + lowered


class Curve:
    """Nanoseconds as a function of one quantity (tokens, contexts, work), linear between knots.

    The first knot is at 0. Past the last one the time grows along the line through the origin and the last knot (the
    achieved rate is held) unless `last_slope` says otherwise. `at` and `at_many` do the same floating-point operations
    in the same order, so they agree to the last bit.
    """

    __slots__ = ("_arrays", "_sources", "ends", "knot_source", "segment_source", "slopes", "xs", "ys")

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        knot_source: int | Sequence[int] = MEASURED,
        *,
        last_slope: float | None = None,
        beyond: int = EXTRAPOLATED,
    ) -> None:
        """Build a curve. `xs` is ascending; `knot_source` is one source for all knots or a list with one for each;
        `beyond` is the source past the last knot."""
        if xs[0] > 0:  # smaller sizes take as long as the smallest measured one
            xs, ys = [0.0, *xs], [ys[0], *ys]
            if not isinstance(knot_source, int):
                knot_source = [knot_source[0], *knot_source]
        self.xs = [float(x) for x in xs]
        self.ys = [float(y) for y in ys]
        self.ends = [*self.xs[1:], inf]
        knots = pairwise(zip(self.xs, self.ys, strict=True))
        self.slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in knots]
        edge = self.ys[-1] / self.xs[-1] if self.xs[-1] else 0.0
        self.slopes.append(edge if last_slope is None else last_slope)
        self.knot_source = sources = [knot_source] * len(self.xs) if isinstance(knot_source, int) else list(knot_source)
        self.segment_source = [max(INTERPOLATED, a, b) for a, b in pairwise(sources)]
        self.segment_source.append(max(beyond, sources[-1]))
        self._arrays: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None = None

    def at(self, x: float) -> float:
        """Return the time at x >= 0."""
        i = bisect_right(self.xs, x) - 1
        return self.ys[i] + (x - self.xs[i]) * self.slopes[i]

    def at_many(self, x: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the times at every x."""
        if self._arrays is None:
            self._arrays = (np.array(self.xs), np.array(self.ys), np.array(self.slopes))
        xs, ys, slopes = self._arrays
        i = np.searchsorted(xs, x, side="right") - 1
        result: NDArray[np.float64] = ys[i] + (x - xs[i]) * slopes[i]
        return result

    def look_up(self, x: float) -> tuple[float, int]:
        """Return the time at x >= 0, and its source."""
        i = bisect_right(self.xs, x) - 1
        start = self.xs[i]
        return self.ys[i] + (x - start) * self.slopes[i], (self.knot_source if start == x else self.segment_source)[i]

    def piece(self, x: float) -> tuple[float, float, float, int, float]:
        """Return the segment of x >= 0 as start, time at the start, and slope; the source of the time at x; and where
        the next sizes with that source end, which is x if x is a knot with a source of its own."""
        i = bisect_right(self.xs, x) - 1
        start, source, until = self.xs[i], self.segment_source[i], self.ends[i]
        if start == x and self.knot_source[i] != source:
            source, until = self.knot_source[i], start
        return start, self.ys[i], self.slopes[i], source, until

    def rounded_run(self, base: float, first: int, step: int, count: int) -> NDArray[np.int64]:
        """Return base + time, rounded, at `count` points from `first` on, `step` > 0 apart; each equals `rounded` of
        its segment to the last bit."""
        xs, last = self.xs, first + (count - 1) * step
        parts = []
        i = bisect_right(xs, first) - 1
        while i + 1 < len(xs) and xs[i + 1] <= last:
            within = int((xs[i + 1] - first) // step)  # exact, since `first` is a whole number below the knot
            if first + within * step < xs[i + 1]:
                within += 1  # points before the knot
            parts.append(self._segment(base, i, first, step, within))
            first += within * step
            i = bisect_right(xs, first) - 1
        parts.append(self._segment(base, i, first, step, (last - first) // step + 1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rounded_times(self, base: float, first: int, step: int, count: int) -> Times:
        """Return `rounded_run` as an array or, for a short run, as a list."""
        xs = self.xs
        i = bisect_right(xs, first) - 1
        across = i + 1 < len(xs) and xs[i + 1] <= first + (count - 1) * step
        if across or count > _LIST_TO:
            run = self.rounded_run(base, first, step, count) if across else self._segment(base, i, first, step, count)
            times: Times = run.tolist() if count < _MANY else run
            return times
        constant, start, slope = base + self.ys[i] + 0.5, xs[i], self.slopes[i]
        return [int(constant + (x - start) * slope) for x in range(first, first + count * step, step)]

    def _segment(self, base: float, i: int, first: int, step: int, count: int) -> NDArray[np.int64]:
        start, y, slope = self.xs[i], self.ys[i], self.slopes[i]
        if count < _VECTOR_FROM:
            points = range(first, first + count * step, step)
            return np.array([rounded(base, y, (x - start) * slope) for x in points], dtype=np.int64)
        if start.is_integer():  # then the difference is exact
            times = np.arange(first - start, first - start + count * step, step)
        else:
            times = np.arange(first, first + count * step, step) - start
        times *= slope
        times += base + y + 0.5
        return times.astype(np.int64)

    @property
    def known_to(self) -> float:
        """Position of the last knot that is not itself extrapolated."""
        return max((x for x, each in zip(self.xs, self.knot_source, strict=True) if each != EXTRAPOLATED), default=0)

    def source(self, x: float) -> int:
        """Return the source of the time at x."""
        return self.look_up(x)[1]

    def over(self, xs: Sequence[float]) -> Curve:
        """Return a curve with the same knot values at positions `xs`, linear in between."""
        return Curve(xs, self.ys, self.knot_source)

    def scaled(self, factor: float, x_factor: float = 1.0) -> Curve:
        """Return the curve of `factor` such operators, with the x values multiplied by `x_factor`."""
        copy = Curve([x * x_factor for x in self.xs], [y * factor for y in self.ys], self.knot_source)
        copy.slopes, copy.segment_source = [s * factor / x_factor for s in self.slopes], self.segment_source
        return copy
