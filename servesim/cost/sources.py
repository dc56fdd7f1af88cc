"""GPU time of steps by source in whole nanoseconds, so that sums over steps do not depend on how they are grouped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from servesim.contracts.cost import RunSources, Sources, Times, added
from servesim.cost.curve import Curve


class CurveSources(RunSources):
    """Sources of a run of steps that differ only in the contexts attended to by their decodes."""

    def __init__(self, fixed: list[int], known: int, curve: Curve | None, context: int, step: int, gpu: Times) -> None:
        """Split steps that take `gpu` ns each: `fixed` is the time by source, `known` the part accounted for (see
        `whole`), and the rest goes to the source of `curve` at the sum of contexts, which starts at `context` and grows
        by `step` per step. `curve` is None if there is no decode attention."""
        self._fixed, self._known, self._curve = fixed, known, curve
        self._context, self._step, self._gpu = context, step, gpu

    def of(self, first: int, stop: int) -> Sources:
        """Return the sums over steps; see `RunSources`."""
        a, b, c, d = self._fixed
        n = stop - first
        sums = [a * n, b * n, c * n, d * n]
        curve, gpu = self._curve, self._gpu
        while curve is not None and first < stop:
            context = self._context + first * self._step + 0.0  # compared with floats
            xs = curve.xs
            i = bisect_right(xs, context) - 1
            source, until = curve.segment_source[i], stop
            if xs[i] == context and curve.knot_source[i] != source:
                source, until = curve.knot_source[i], first + 1
            elif stop - first > 1 and i + 1 < len(xs) and context + (stop - 1 - first) * self._step >= xs[i + 1]:
                until = int(-(-(xs[i + 1] - self._context) // self._step))  # the first step at or beyond the next knot
            taken = int(gpu[first]) if until == first + 1 else added(gpu, first, until)
            sums[source] += taken - self._known * (until - first)
            first = until
        a, b, c, d = sums
        return (a, b, c, d)


class SumSources(RunSources):
    """Sources of steps that consist of several passes."""

    def __init__(self, passes: Sequence[RunSources]) -> None:
        self._passes = passes

    def of(self, first: int, stop: int) -> Sources:
        """Return the sums over steps; see `RunSources`."""
        a = b = c = d = 0
        for each in self._passes:
            p, q, r, s = each.of(first, stop)
            a, b, c, d = a + p, b + q, c + r, d + s
        return (a, b, c, d)
