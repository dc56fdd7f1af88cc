"""Attention as some tables measure it: prompts over cached context, and decodes beside a prompt in one kernel."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, Curve
from servesim.cost.grid import HeadShape, head_rows, work

_Rows = dict[str, NDArray[Any]]


class CachedPrefill:
    """Time of one prompt piece over its new tokens, by tokens cached before it; linear between those."""

    def __init__(self, rows: _Rows) -> None:
        """`rows` of one head shape and one sequence each."""
        self._past = np.unique(rows["past_tokens"]).tolist()
        self._curves = [_curve(rows, rows["past_tokens"] == past, "new_tokens") for past in self._past]

    @classmethod
    def of(cls, rows: _Rows, shape: HeadShape) -> CachedPrefill | None:
        """From the rows of a table; None where it has none over cached tokens at these heads."""
        found = head_rows(rows, shape, 1)
        return cls(found) if len(found["time_us"]) and found["past_tokens"].any() else None

    def at(self, new: int, past: int) -> tuple[float, int]:
        """Time and source of `new` tokens over `past`."""
        i = bisect_right(self._past, past) - 1
        if i < 0:
            return self._curves[0].at(new), EXTRAPOLATED
        ns, source = self._curves[i].look_up(new)
        low = self._past[i]
        if low == past:
            return ns, source
        if i + 1 == len(self._past):
            return ns * (work(new, past) / work(new, low)), EXTRAPOLATED
        above, its = self._curves[i + 1].look_up(new)
        weight = (past - low) / (self._past[i + 1] - low)
        return ns * (1.0 - weight) + above * weight, max(INTERPOLATED, source, its)


class MixedExcess:
    """What one kernel over decodes and a prompt takes beyond the two apart, the fixed cost paid once.

    Kernels give up on decodes, beside a prompt, what they do for decodes alone (splitting the context over the GPU,
    sharing what heads have in common), so this is most of the time of a mixed call where contexts are long. It is
    linear in sequences and their mean context, and in the tokens of the prompt; those cached before the prompt hardly
    change it and are no axis. Beyond the last measured number of any of them it grows in proportion, but for the
    prompt, beyond which it stays.
    """

    def __init__(self, rows: _Rows, decode: _Rows, prefill: _Rows) -> None:
        """`rows` of calls with both, of decodes and of prompts alone, all of one head shape."""
        alone = _by(decode, "batch", "past_tokens")
        prompt = {new: ns for (new, past), ns in _by(prefill, "new_tokens", "past_tokens").items() if not past}
        floor = alone[min(alone)]
        found: dict[int, dict[int, list[tuple[int, float]]]] = {}
        for (new, count, context), ns in sorted(_by(rows, "new_tokens", "batch", "past_tokens").items()):
            if new in prompt and (count, context) in alone:
                excess = ns - alone[count, context] - max(0.0, prompt[new] - floor)
                found.setdefault(new, {}).setdefault(count, []).append((context + 1, excess))
        # prompts measured beside long contexts alone say nothing about short ones
        least = min(points[0][0] for sizes in found.values() for points in sizes.values())
        kept = {new: s for new, s in found.items() if all(points[0][0] == least for points in s.values())}
        self._new = list(kept)
        self._counts = [list(sizes) for sizes in kept.values()]
        self._curves = [[Curve(*zip(*points, strict=True)) for points in sizes.values()] for sizes in kept.values()]

    @classmethod
    def of(cls, rows: _Rows, decode: _Rows, prefill: _Rows, shape: HeadShape) -> MixedExcess | None:
        """From the rows of a table; None where it has none at these heads."""
        if not rows:
            return None
        mine = head_rows(rows, shape, None)
        if not len(mine["time_us"]):
            return None
        return cls(mine, head_rows(decode, shape, None), head_rows(prefill, shape, 1))

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """Time and source, with `count` decodes of mean `context` beside a prompt of `new` tokens."""
        i = bisect_right(self._new, new) - 1
        if i < 0 or i + 1 == len(self._new):
            ns, source = self._beside(max(i, 0), count, context)
            return ns, source if self._new[i] == new else EXTRAPOLATED
        low, source = self._beside(i, count, context)
        if self._new[i] == new:
            return low, source
        above, its = self._beside(i + 1, count, context)
        weight = (new - self._new[i]) / (self._new[i + 1] - self._new[i])
        return low * (1.0 - weight) + above * weight, max(INTERPOLATED, source, its)

    def _beside(self, prompt: int, count: int, context: float) -> tuple[float, int]:
        counts, curves = self._counts[prompt], self._curves[prompt]
        i = bisect_right(counts, count) - 1
        if i < 0:
            return curves[0].at(context), EXTRAPOLATED
        ns, source = curves[i].look_up(context)
        low = counts[i]
        if low == count:
            return ns, source
        if i + 1 == len(counts):
            return ns * (count / low), EXTRAPOLATED
        above, its = curves[i + 1].look_up(context)
        weight = (count - low) / (counts[i + 1] - low)
        return ns * (1.0 - weight) + above * weight, max(INTERPOLATED, source, its)


def _curve(rows: _Rows, mask: NDArray[np.bool_], axis: str) -> Curve:
    x, y = rows[axis][mask], rows["time_us"][mask] * 1e3
    order = np.argsort(x)
    return Curve(x[order].tolist(), y[order].tolist())


def _by(rows: _Rows, *keys: str) -> dict[tuple[int, ...], float]:
    """Nanoseconds by the columns `keys`."""
    columns = [rows[key].tolist() for key in keys]
    return dict(zip(zip(*columns, strict=True), (rows["time_us"] * 1e3).tolist(), strict=True))
