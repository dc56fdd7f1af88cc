"""GPU time of steps by source in whole nanoseconds, so that sums over steps do not depend on how they are grouped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from servesim.contracts.cost import RunSources, Sources, Times, added
from servesim.cost.curve import Curve


class CurveSources(RunSources):
    """Sources of a run of steps that differ only in the contexts attended to by their decodes."""

    def __init__(
        self,
        fixed: list[int],
        known: int,
        curve: Curve | None,
        context: int,
        step: int,
        gpu: Times,
        source: int = 0,
        until: float = 0.0,
    ) -> None:
        """Split steps that take `gpu` ns each: `fixed` is the time by source, `known` the part accounted for (see
        `whole`), and the rest goes to the source of `curve` at the sum of contexts, which starts at `context` and grows
        by `step` per step. `curve` is None if there is no decode attention. Where it is known already, `source` is that
        of all sums below `until`."""
        self._fixed, self._known, self._curve = fixed, known, curve
        self._context, self._step, self._gpu = context, step, gpu
        self._source, self._until = source, until

    def of(self, first: int, stop: int) -> Sources:
        """Return the sums over steps; see `RunSources`."""
        a, b, c, d = self._fixed
        n, gpu = stop - first, self._gpu
        sums = [a * n, b * n, c * n, d * n]
        if self._context + (stop - 1) * self._step + 0.0 < self._until:  # compared with floats
            taken = int(gpu[first]) if n == 1 else added(gpu, first, stop)
            sums[self._source] += taken - self._known * n
        elif self._curve is not None:
            self._across(self._curve, sums, first, stop)
        a, b, c, d = sums
        return (a, b, c, d)

    def _across(self, curve: Curve, sums: list[int], first: int, stop: int) -> None:
        """Add the rest of the steps, whose contexts may lie on several segments of the curve."""
        xs, gpu = curve.xs, self._gpu
        while first < stop:
            context = self._context + first * self._step + 0.0
            i = bisect_right(xs, context) - 1
            source, until = curve.segment_source[i], stop
            if xs[i] == context and curve.knot_source[i] != source:
                source, until = curve.knot_source[i], first + 1
            elif stop - first > 1 and i + 1 < len(xs) and context + (stop - 1 - first) * self._step >= xs[i + 1]:
                until = int(-(-(xs[i + 1] - self._context) // self._step))  # the first step at or beyond the next knot
            sums[source] += added(gpu, first, until) - self._known * (until - first)
            first = until


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
