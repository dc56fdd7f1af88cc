"""Attention as measured in some tables: prompts over cached context, and decodes batched with a prompt in one
kernel."""

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
    """Time of one prefill chunk as a function of its work, by number of tokens cached before it; linear between
    measured numbers."""

    def __init__(self, rows: _Rows) -> None:
        """Build from `rows` of one head shape, each for a single sequence."""
        lines: Lines = {}
        for (past, new), ns in _by(rows, "past_tokens", "new_tokens").items():
            lines.setdefault(float(past), {})[float(new)] = ns
        entries = [(past, curve.over([work(new, past) for new in curve.xs])) for past, curve in completed(lines)]
        self._past, self._curves = [past for past, _ in entries], [curve for _, curve in entries]

    @classmethod
    def of(cls, rows: _Rows, shape: HeadShape) -> CachedPrefill | None:
        """Build from the rows of a table. Return None if it has no rows over cached tokens at these heads."""
        if "past_tokens" not in rows:
            return None
        found = head_rows(rows, shape, 1)
        return cls(found) if len(found["time_us"]) and found["past_tokens"].any() else None

    def at(self, new: int, past: int) -> tuple[float, int]:
        """Return the time and source for `new` tokens over `past` cached ones."""
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
        above, source_above = self._curves[i + 1].look_up(work(new, high))
        weight = (past - low) / (high - low)
        return ns * (1.0 - weight) + above * weight, max(INTERPOLATED, source, source_above)


class MixedExcess:
    """Extra time of one kernel for decodes and a prompt compared with running the two separately but paying the fixed
    cost once.

    When batched with a prompt, decodes lose optimizations that kernels have for decodes alone (splitting the context
    over the GPU, sharing work between heads), so the excess is up to half of a mixed call. It is linear in the number
    of sequences, in their mean context and in the tokens of the prompt. Beyond the largest measured number of sequences
    and context it grows in proportion; beyond the longest measured prompt it stays constant. Tokens cached before the
    prompt are not taken into account.
    """

    def __init__(self, points: _Points) -> None:
        """Build from `points`: (context, excess in ns) by number of prompt tokens and number of sequences, ascending;
        not empty."""
        lines = {new: {n: Curve(*_unzip(line)) for n, line in sizes.items()} for new, sizes in points.items()}
        curves = [curve for sizes in lines.values() for curve in sizes.values()]
        self._new = list(points)
        self._counts = sorted({n for sizes in points.values() for n in sizes})
        self._contexts = sorted({x for curve in curves for x in curve.xs})
        self._known = max(min(curve.xs[-1] for curve in curves), 1.0)  # with every prompt and number of sequences
        self._longest = max(*self._contexts, 1.0)
        self._ns = [[[_at(lines[new], n, x) for x in self._contexts] for n in self._counts] for new in self._new]

    @classmethod
    def of(cls, rows: _Rows, decode: _Rows, prefill: _Rows, shape: HeadShape) -> MixedExcess | None:
        """Build from the rows of a table. Return None if it has no rows at these heads."""
        if not rows:
            return None
        points = _excess(head_rows(rows, shape), head_rows(decode, shape), head_rows(prefill, shape, 1))
        return cls(points) if points else None

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """Return the excess and its source for `count` decodes of mean context `context` batched with a prompt of `new`
        tokens."""
        last, scale, source = self._counts[-1], 1.0, INTERPOLATED
        if count > last:
            scale, source = count / last, EXTRAPOLATED
        if context > self._known:
            source = EXTRAPOLATED
        if context > self._longest:
            scale, context = scale * context / self._longest, self._longest
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


class SkewExcess:
    """Extra time of decodes with unequal contexts compared with the same number of decodes with equal contexts that
    have the same sum.

    If the kernel does not split contexts over the GPU, the longest one continues after the others are done: the excess
    is a fixed time for each token by which it exceeds the mean. When batched with a prompt, no context is split; in
    decode-only steps, the contexts of large batches are not split. (RTX PRO 6000, with one or more decodes having 4
    times the context of the others: mean error 3.7 % without this and 1.8 % with it; when batched with a prompt without
    cached context, 13 % and 5 %.)
    """

    def __init__(self, alone: Curve, beside: Curve) -> None:
        """Set the nanoseconds per token as functions of the number of decodes, alone and batched with a prompt."""
        self._alone, self._beside = alone, beside

    @classmethod
    def of(cls, rows: _Rows, shape: HeadShape) -> SkewExcess | None:
        """Build from the rows of a table, which must include rows with equal contexts. Return None if it has no such
        rows at these heads."""
        if not rows:
            return None
        calls = _by(head_rows(rows, shape), "new_tokens", "batch", "past_tokens", "longest")
        sums: dict[bool, dict[int, tuple[float, float]]] = {False: {}, True: {}}
        for (new, count, mean, longest), ns in calls.items():
            equal = calls.get((new, count, mean, mean))
            if equal is not None and longest > mean:
                # least squares of relative errors
                over, excess = (longest - mean) / equal, (ns - equal) / equal
                above, below = sums[new > 0].get(count, (0.0, 0.0))
                sums[new > 0][count] = (above + over * excess, below + over * over)
        if not sums[False] or not sums[True]:
            return None
        curves = []
        for found in (sums[False], sums[True]):
            counts = sorted(found)
            rates = [max(0.0, above / below) for above, below in (found[n] for n in counts)]
            curves.append(Curve([float(n) for n in counts], rates, last_slope=0.0))
        return cls(*curves)

    def beside_prompts(self) -> SkewExcess:
        """Return this excess for decodes batched with a prompt, and none for decodes alone."""
        return SkewExcess(self._alone.scaled(0.0), self._beside)

    def at(self, count: int, excess: int, beside: bool) -> tuple[float, int]:
        """Return the time and source for `count` decodes whose contexts total `excess` tokens fewer than if all were as
        long as the longest. `beside`: whether the decodes are batched with a prompt."""
        rate, source = (self._beside if beside else self._alone).look_up(count)
        return rate * excess / count, max(INTERPOLATED, source)


def _place(knots: Sequence[float], x: float) -> tuple[int, float]:
    """Return the index of the knot at or below x (the first knot if there is none), and the fraction of the distance to
    the next knot."""
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
    """Return the excess by number of prompt tokens and number of sequences, from mixed calls and from separate decodes
    and prompts."""
    alone = _by(decode, "batch", "past_tokens")
    prompt = {new: ns for (new, past), ns in _by(prefill, "new_tokens", "past_tokens").items() if not past}
    found: _Points = {}
    for (new, count, context), ns in sorted(_by(rows, "new_tokens", "batch", "past_tokens").items()):
        if new in prompt and (count, context) in alone:
            excess = ns - alone[count, context] - max(0.0, prompt[new] - alone[min(alone)])
            found.setdefault(new, {}).setdefault(count, []).append((context + 1, excess))
    # prompts measured only with long contexts give no information about short ones
    starts = {new: min(line[0][0] for line in sizes.values()) for new, sizes in found.items()}
    return {new: sizes for new, sizes in found.items() if starts[new] == min(starts.values())}


def _at(lines: dict[int, Curve], count: int, context: float) -> float:
    """Return the excess for `count` sequences, linear between the measured numbers of sequences and proportional to the
    number beyond them."""
    counts = list(lines)
    if count > counts[-1]:
        return lines[counts[-1]].at(context) * (count / counts[-1])
    i, weight = _place(counts, count)
    at = lines[counts[i]].at(context)
    return at if not weight else at * (1.0 - weight) + lines[counts[i + 1]].at(context) * weight


def _by(rows: _Rows, *keys: str) -> dict[tuple[int, ...], float]:
    """Return the nanoseconds of each row, keyed by the columns `keys`."""
    columns = [rows[key].tolist() for key in keys]
    return dict(zip(zip(*columns, strict=True), (rows["time_us"] * 1e3).tolist(), strict=True))
