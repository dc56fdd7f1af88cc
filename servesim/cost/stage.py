"""The part of a model that runs on one pipeline stage, and the cost of a step there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch, RunSources, Times
from servesim.cost.attention import Attention, decode_over_sum, prefill_ns
from servesim.cost.context_pricing import Pass
from servesim.cost.curve import EXTRAPOLATED, ROOFLINE, Curve, rounded, whole
from servesim.cost.curves import total
from servesim.cost.formula import Roofline
from servesim.cost.sources import CurveSources


class Operator(NamedTuple):
    """An operator that is not attention."""

    name: str
    curve: Curve
    """Total time of all its runs in a step, as a function of tokens or rows."""
    throttled: Curve | None = None
    """The same at the clock that the power limit sustains, or None if it is no different."""
    runs: int = 1
    """Number of runs in a step, i.e. kernels launched."""


class AttentionLayers(NamedTuple):
    """Layers with the same kind of attention."""

    attention: Attention
    layers: int


class Priced(NamedTuple):
    """Extremes among the steps that a stage has priced."""

    tokens: int | None
    samples: int | None
    decodes: tuple[tuple[int, int, str], ...]
    attended: int
    over_cache: bool


class Stage:
    """Operators of one stage: `per_token` as functions of the tokens in a step (padding included), `per_sample` as
    functions of the rows that sample (last stage only)."""

    def __init__(
        self,
        per_token: Sequence[Operator],
        per_sample: Sequence[Operator],
        attention: Sequence[AttentionLayers],
        roofline: Roofline,
        copied: float = 1.0,
        cool_ns: float = 0.0,
    ) -> None:
        """Build a stage. `copied`: this stage's share of swapped and copied bytes. `cool_ns`: compute time of a step
        before the power limit lowers the clock."""
        self._per_token, self._per_sample, self._attention = per_token, per_sample, attention
        self._roofline, self._copied = roofline, copied
        self.layers = sum(layer.layers for layer in attention)
        self.mixtures = sum(operator.runs for operator in per_token if operator.name == "experts")
        """Number of layers, and number of layers with experts."""
        self._cool_ns = cool_ns
        self.skewed = any(layer.attention.skew is not None for layer in attention)
        """Whether decode takes longer the more unequal its contexts are."""
        # Repeated values are cached from step to step. The keys determine the values, so pricing stays a pure function.
        self._token_costs: dict[int, tuple[float, list[float]]] = {}
        hot = [(operator.curve, operator.throttled) for operator in per_token if operator.throttled is not None]
        self._at_full_clock = total([curve for curve, _ in hot]) if hot else None
        self._throttled = total([throttled for _, throttled in hot]) if hot else None
        self._sample_costs: dict[int, tuple[float, list[float]]] = {}
        self._decode_costs: dict[tuple[int, int], tuple[float, list[float]]] = {}
        self._decode_curves: dict[tuple[int, int, str], Curve] = {}
        self._attended, self._over_cache = 0, False
        """Extremes among extrapolated prefill chunks: the most tokens attended to, and whether any chunk had cached
        tokens before it."""

    def constant(self, batch: Batch, tokens: int) -> tuple[float, list[float]]:
        """Return the nanoseconds of everything except decode attention, which stay constant along a decode run, and the
        same by source (slowdown under load is not included)."""
        if batch.prefill or batch.bytes_moved or batch.bytes_copied:
            return self._constant(batch, tokens)
        key = (tokens, batch.sampled + batch.drafts)
        known = self._decode_costs.get(key)
        if known is None:
            known = self._decode_costs[key] = self._constant(batch, tokens)
        return known[0], known[1].copy()

    def _constant(self, batch: Batch, tokens: int) -> tuple[float, list[float]]:
        cost = self._token_costs.get(tokens)
        if cost is None:
            cost = self._token_costs[tokens] = self._sum_at(self._per_token, tokens)
        ns, parts = cost[0], cost[1].copy()
        if batch.prefill:
            attended, source = self._prefill(batch)
            ns += attended
            parts[source] += attended
        if self._throttled is not None and ns > self._cool_ns:
            ns += self.lower_clock(ns, tokens)
        if self._per_sample and batch.sampled:
            rows = batch.sampled + batch.drafts
            cost = self._sample_costs.get(rows)
            if cost is None:
                cost = self._sample_costs[rows] = self._sum_at(self._per_sample, rows)
            ns += cost[0]
            for source, part in enumerate(cost[1]):
                parts[source] += part
        if batch.bytes_moved or batch.bytes_copied:
            copied = self._roofline.copy_ns(batch.bytes_moved) + self._roofline.move_ns(batch.bytes_copied)
            copied *= self._copied
            ns += copied
            parts[ROOFLINE] += copied
        return ns, parts

    def launches(self, sampled: bool) -> int:
        """Return the number of kernels that a step launches, one per operator."""
        operators = [*self._per_token, *(self._per_sample if sampled else ())]
        return sum(o.runs for o in operators) + sum(layer.layers for layer in self._attention)

    def lower_clock(self, computing: float, tokens: int) -> float:
        """Return the time that the power limit adds to a step that computes for `computing` ns, not counting decode
        attention and sampling: the extra time of its dense layers at the clock that the limit sustains, for the part of
        the step after the clock was lowered."""
        if computing <= self._cool_ns:
            return 0.0
        return self.throttling_ns(tokens) * (1.0 - self._cool_ns / computing)

    def throttling_ns(self, tokens: int) -> float:
        """Return the extra time that dense layers take at the sustained clock."""
        if self._throttled is None or self._at_full_clock is None:
            return 0.0
        return self._throttled.at(tokens) - self._at_full_clock.at(tokens)

    def cost(self, batch: Batch, tokens: int) -> tuple[int, list[int]]:
        """Return the nanoseconds of the whole step, rounded once, and the same by source."""
        ns, parts = self.constant(batch, tokens)
        if not batch.decode_count:
            return int(ns + 0.5), whole(ns, parts)[0]
        if self.skewed:
            beyond, source = self.skew(batch)
            parts[source] += beyond
            ns += beyond
        curve, contexts = self.decode_curve(batch), batch.decode_context_sum
        start, y, slope, source, _ = curve.piece(contexts)
        times = rounded(ns, y, (contexts - start) * slope)
        sources, known = whole(ns, parts)
        sources[source] += times - known
        return times, sources

    def run_sources(self, batch: Batch, tokens: int, gpu: Times) -> RunSources:
        """Return the sources of successive steps that take `gpu` ns each and start with `batch`, including its
        decodes."""
        ns, parts = self.constant(batch, tokens)
        if self.skewed:
            beyond, source = self.skew(batch)
            parts[source] += beyond
            ns += beyond
        sources, known = whole(ns, parts)
        if not batch.decode_count:
            return CurveSources(sources, known, None, 0, 0, gpu)
        return CurveSources(sources, known, self.decode_curve(batch), batch.decode_context_sum, batch.decode_count, gpu)

    def run(self, batch: Batch, tokens: int, k: int) -> NDArray[np.int64]:
        """Return the nanoseconds of k successive steps; the batch must be decode-only if k > 1."""
        base = self.constant(batch, tokens)[0]
        if not batch.decode_count:
            return np.array([int(base + 0.5)], dtype=np.int64)
        if self.skewed:
            base += self.skew(batch)[0]
        curve = self.decode_curve(batch)
        return curve.rounded_run(base, batch.decode_context_sum, batch.decode_count, k)

    def over_contexts(self, batch: Batch, tokens: int, context: int) -> Pass | None:
        """Return the price of a decode-only step as a function of the sum of contexts, which is `context` for the whole
        step, or None if the price depends on more than the sum."""
        base, parts = self.constant(batch, tokens)
        if not batch.decode_count:
            return Pass(base, parts, None, 0)
        if self.skewed and batch.queries_per_sequence == 1 and batch.attention != "per_request":
            return None
        return Pass(base, parts, self.decode_curve(batch), batch.decode_context_sum - context)

    def skew(self, batch: Batch) -> tuple[float, int]:
        """Return the time added by unequal contexts, and its source; both stay constant along a run."""
        excess = batch.decode_count * batch.decode_context_max - batch.decode_context_sum
        whole, source = 0.0, 0
        if excess <= 0 or batch.queries_per_sequence > 1 or batch.attention == "per_request":
            return whole, source
        for attention, layers in self._attention:
            if attention.skew is not None:
                ns, skew_source = attention.skew.at(batch.decode_count, excess, bool(batch.prefill))
                whole, source = whole + ns * layers, max(source, skew_source)
        return whole, source

    def decode_curve(self, batch: Batch) -> Curve:
        """Return the decode attention time of all layers as a function of the sum of the contexts."""
        return self._decode_curve((batch.decode_count, batch.queries_per_sequence, batch.attention))

    def _decode_curve(self, key: tuple[int, int, str]) -> Curve:
        curve = self._decode_curves.get(key)
        if curve is None:
            count, queries, kind = key
            split = kind == "per_request"
            kinds = [decode_over_sum(a, count, queries, split, layers) for a, layers in self._attention]
            curve = self._decode_curves[key] = total(kinds)
        return curve

    def priced(self) -> Priced:
        """Return the extremes among the steps priced so far, which `extrapolated` uses."""
        most = max(self._token_costs, default=None), max(self._sample_costs, default=None)
        return Priced(*most, tuple(sorted(self._decode_curves)), self._attended, self._over_cache)

    def add_priced(self, other: Priced) -> None:
        """Also count the steps priced by another model."""
        for most, costs, operators in (
            (other.tokens, self._token_costs, self._per_token),
            (other.samples, self._sample_costs, self._per_sample),
        ):
            if most is not None:
                costs.setdefault(most, self._sum_at(operators, most))
        for key in other.decodes:
            self._decode_curve(key)
        self._attended, self._over_cache = max(self._attended, other.attended), self._over_cache or other.over_cache

    def extrapolated(self, reach: Mapping[int, int]) -> dict[str, str]:
        """Return, by operator, the steps priced so far that were outside the tables. `reach`: the largest sum of
        contexts actually reached, by number of decoding sequences."""
        found: dict[str, str] = {}
        for operators, priced in ((self._per_token, self._token_costs), (self._per_sample, self._sample_costs)):
            most = max(priced, default=0)
            for name, curve, *_ in operators:
                if priced and min(curve.knot_source) == EXTRAPOLATED:
                    found[name] = "a shape that was not measured"
                elif priced and curve.source(most) == EXTRAPOLATED:
                    found[name] = f"up to {most:,} rows, measured up to {int(curve.known_to):,}"
        if self._attended:
            cached = " over cached ones" if self._over_cache else ""
            found["attention_prefill"] = f"prefill of new tokens{cached}, up to {self._attended:,} tokens attended to"
        decode = self._decode_beyond(reach)
        return found | ({"attention_decode": decode} if decode else {})

    def _decode_beyond(self, reach: Mapping[int, int]) -> str:
        unknown, longest = 0, (0, 0, 0)
        for (count, _, _), curve in self._decode_curves.items():
            contexts = reach.get(count, 0)
            if contexts and min(curve.knot_source) == EXTRAPOLATED:
                unknown = max(unknown, count)
            elif curve.source(contexts) == EXTRAPOLATED:
                longest = max(longest, (contexts // count, count, int(curve.known_to) // count))
        if unknown:
            return f"up to {unknown:,} sequences, a batch size that was not measured with these heads"
        context, count, known = longest
        return f"contexts up to {context:,} of {count:,} sequences, measured up to {known:,}" if count else ""

    def _prefill(self, batch: Batch) -> tuple[float, int]:
        split, source, whole = batch.attention == "per_request", 0, 0.0
        for attention, layers in self._attention:
            ns, origin = prefill_ns(attention, batch.prefill, split)
            if batch.decode_count and not split:  # same kernel as the decodes, which already pay its fixed cost
                ns = ns - attention.floor if ns > attention.floor else 0.0
                if attention.mixed is not None:
                    context = batch.decode_context_sum / batch.decode_count
                    new = sum([piece[0] for piece in batch.prefill])
                    excess, mixed_source = attention.mixed.at(batch.decode_count, context, new)
                    ns = ns + excess if ns + excess > 0.0 else 0.0
                    origin = mixed_source if mixed_source > origin else origin
            whole += ns * layers
            if origin > source:
                source = origin
        if source == EXTRAPOLATED:
            for new, past in batch.prefill:
                if new + past > self._attended:
                    self._attended = new + past
                if past:
                    self._over_cache = True
        return whole, source

    def _sum_at(self, operators: Sequence[Operator], x: int) -> tuple[float, list[float]]:
        parts = [0.0, 0.0, 0.0, 0.0]
        if not x:
            return 0.0, parts
        for _, curve, *_ in operators:
            ns, source = curve.look_up(x)
            parts[source] += ns
        return parts[0] + parts[1] + parts[2] + parts[3], parts
