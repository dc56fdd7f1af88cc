"""Attention as some tables measure it: prompts over cached context, and decodes beside a prompt in one kernel."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, Curve
from servesim.cost.gaps import Lines
from servesim.cost.grid import HeadShape, completed, head_rows, work

_Rows = dict[str, NDArray[Any]]
_Points = dict[int, dict[int, list[tuple[int, float]]]]


class CachedPrefill:
    """Time of one prompt piece over its work, by tokens cached before it; linear between those."""

    def __init__(self, rows: _Rows) -> None:
        """`rows` of one head shape and one sequence each."""
        lines: Lines = {}
        for (past, new), ns in _by(rows, "past_tokens", "new_tokens").items():
            lines.setdefault(float(past), {})[float(new)] = ns
        entries = [(past, curve.over([work(new, past) for new in curve.xs])) for past, curve in completed(lines)]
        self._past, self._curves = [past for past, _ in entries], [curve for _, curve in entries]

    @classmethod
    def of(cls, rows: _Rows, shape: HeadShape) -> CachedPrefill | None:
        """From the rows of a table; None where it has none over cached tokens at these heads."""
        if "past_tokens" not in rows:
            return None
        found = head_rows(rows, shape, 1)
        return cls(found) if len(found["time_us"]) and found["past_tokens"].any() else None

    def at(self, new: int, past: int) -> tuple[float, int]:
        """Time and source of `new` tokens over `past`."""
        i = bisect_right(self._past, past) - 1
        if i < 0:
            return self._curves[0].at(work(new, past)), EXTRAPOLATED
        low = self._past[i]
        ns, source = self._curves[i].look_up(work(new, low))
        if low == past:
            return ns, source
        if i + 1 == len(self._past):
            return ns * (work(new, past) / work(new, low)), EXTRAPOLATED
        high = self._past[i + 1]
        above, its = self._curves[i + 1].look_up(work(new, high))
        weight = (past - low) / (high - low)
        return ns * (1.0 - weight) + above * weight, max(INTERPOLATED, source, its)


class MixedExcess:
    """What one kernel over decodes and a prompt takes beyond the two apart, the fixed cost paid once.

    Kernels give up on decodes, beside a prompt, what they do for decodes alone (splitting the context over the GPU,
    sharing what heads have in common), so this is up to half of a mixed call. It is linear in sequences, in their
    mean context and in the tokens of the prompt. Beyond the last measured sequences and contexts it grows in
    proportion; beyond the prompts it stays. Tokens cached before the prompt are no axis.
    """

    def __init__(self, points: _Points) -> None:
        """`points`: (context, excess in ns) by tokens of the prompt and by sequences, ascending; the same numbers of
        sequences at each prompt; not empty."""
        lines = {(new, n): Curve(*_unzip(line)) for new, sizes in points.items() for n, line in sizes.items()}
        self._new = list(points)
        self._counts = list(points[self._new[0]])
        self._contexts = sorted({x for curve in lines.values() for x in curve.xs})
        self._known = max(min(curve.xs[-1] for curve in lines.values()), 1.0)
        self._ns = [[[lines[new, n].at(x) for x in self._contexts] for n in self._counts] for new in self._new]

    @classmethod
    def of(cls, rows: _Rows, decode: _Rows, prefill: _Rows, shape: HeadShape) -> MixedExcess | None:
        """From the rows of a table; None where it has none at these heads."""
        if not rows:
            return None
        points = _excess(head_rows(rows, shape), head_rows(decode, shape), head_rows(prefill, shape, 1))
        return cls(points) if points else None

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """Time and source, with `count` decodes of mean `context` beside a prompt of `new` tokens."""
        last, scale, source = self._counts[-1], 1.0, INTERPOLATED
        if count > last:
            scale, source = count / last, EXTRAPOLATED
        if context > self._known:
            scale, context, source = scale * context / self._known, self._known, EXTRAPOLATED
        if not self._new[0] <= new <= self._new[-1]:
            source = EXTRAPOLATED
        i, u = _place(self._new, new)
        j, v = _place(self._counts, count)
        k, w = _place(self._contexts, context)
        ns = 0.0
        for of_prompt, share in ((i, 1.0 - u), (i + 1, u)):
            if share:
                sizes = self._ns[of_prompt]
                line = sizes[j]
                at = line[k] + (line[k + 1] - line[k]) * w if w else line[k]
                if v:
                    line = sizes[j + 1]
                    above = line[k] + (line[k + 1] - line[k]) * w if w else line[k]
                    at += (above - at) * v
                ns += share * at
        return ns * scale, source


def _place(knots: Sequence[float], x: float) -> tuple[int, float]:
    """The knot at or below x, the first and last at least, and the share of the way to the next."""
    i = bisect_right(knots, x) - 1
    if i < 0:
        return 0, 0.0
    if i + 1 == len(knots):
        return i, 0.0
    low = knots[i]
    return i, (x - low) / (knots[i + 1] - low)


def _unzip(line: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    return [float(x) for x, _ in line], [y for _, y in line]


def _excess(rows: _Rows, decode: _Rows, prefill: _Rows) -> _Points:
    """By tokens of the prompt and by sequences, from calls with both and from decodes and prompts alone."""
    alone = _by(decode, "batch", "past_tokens")
    prompt = {new: ns for (new, past), ns in _by(prefill, "new_tokens", "past_tokens").items() if not past}
    found: _Points = {}
    for (new, count, context), ns in sorted(_by(rows, "new_tokens", "batch", "past_tokens").items()):
        if new in prompt and (count, context) in alone:
            excess = ns - alone[count, context] - max(0.0, prompt[new] - alone[min(alone)])
            found.setdefault(new, {}).setdefault(count, []).append((context + 1, excess))
    # prompts measured beside long contexts alone say nothing about short ones
    least = min((line[0][0] for sizes in found.values() for line in sizes.values()), default=0)
    kept = {new: sizes for new, sizes in found.items() if all(line[0][0] == least for line in sizes.values())}
    common = set.intersection(*(set(sizes) for sizes in kept.values())) if kept else set()
    return {new: {n: line for n, line in sizes.items() if n in common} for new, sizes in kept.items()} if common else {}


def _by(rows: _Rows, *keys: str) -> dict[tuple[int, ...], float]:
    """Nanoseconds by the columns `keys`."""
    columns = [rows[key].tolist() for key in keys]
    return dict(zip(zip(*columns, strict=True), (rows["time_us"] * 1e3).tolist(), strict=True))
