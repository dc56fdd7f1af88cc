"""The price of a step: linear layers once over all its tokens, attention by structure, sampling by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import NO_HOST, Batch, CostModel, Host, Price
from servesim.cost.attention import Attention, decode_over_sum, prefill_ns
from servesim.cost.curve import ROOFLINE, Curve
from servesim.cost.formula import Roofline
from servesim.cost.host import HostTerms

_Parts = tuple[float, float, float, float]
"""Nanoseconds by source, in the order of `Price.shares`."""
_NOTHING: tuple[float, _Parts] = (0.0, (0.0, 0.0, 0.0, 0.0))
_VECTOR_FROM = 24
"""Steps from which numpy beats a Python loop."""


class TableCostModel(CostModel):
    """Prices from kernel tables; build it with `build_cost_model`.

    Operators are curves already multiplied by how often a step runs them: `per_token` over the tokens of
    the step (padding included), `per_sample` over the rows that sample. Attention of a mixed step is one
    kernel, so its fixed cost is paid once. Decode depends on the sum of the contexts alone, not on their
    spread. Copies over PCIe are not overlapped with the step. With `host` terms small batches are padded to
    CUDA-graph sizes, and computing beyond what the clock sustains is slower.
    """

    def __init__(
        self,
        per_token: Sequence[Curve],
        per_sample: Sequence[Curve],
        attention: Attention,
        num_layers: int,
        roofline: Roofline,
        description: str = "",
        host: HostTerms | None = None,
    ) -> None:
        self.description = description
        self.terms = host
        self._padded = host.padding() if host is not None else []
        self._cool_ns = host.sustained_after if host is not None else 0.0
        self._slowdown = host.sustained_slowdown if host is not None else 0.0
        self._per_token = per_token
        self._per_sample = per_sample
        self._attention = attention
        self._layers = num_layers
        self._roofline = roofline
        # What repeats from step to step is remembered; the keys fix the values, so prices stay pure.
        self._token_costs: dict[int, tuple[float, _Parts]] = {0: _NOTHING}
        self._sample_costs: dict[int, tuple[float, _Parts]] = {0: _NOTHING}
        self._decode_curves: dict[tuple[int, int, str], Curve] = {}

    def gpu_run(self, batch: Batch, k: int) -> NDArray[np.int64]:
        """See the contract. Scalar and vector paths do the same operations in the same order."""
        base = self._constant_ns(batch)
        if not batch.decode_count:
            return np.array([int(base + 0.5)], dtype=np.int64)
        curve = self._decode_curve(batch)
        count, first = batch.decode_count, batch.decode_context_sum
        if k < _VECTOR_FROM:
            sums = range(first, first + k * count, count)
            return np.array([int(base + curve.at(s) + 0.5) for s in sums], dtype=np.int64)
        times = base + curve.at_many(np.arange(first, first + k * count, count, dtype=np.int64)) + 0.5
        return times.astype(np.int64)

    def host(self, batch: Batch) -> Host:
        """See the contract."""
        return self.terms.host(batch) if self.terms is not None else NO_HOST

    def price(self, batch: Batch) -> Price:
        """Price of one step."""
        total = self._constant_ns(batch)
        if batch.decode_count:
            total = total + self._decode_curve(batch).at(batch.decode_context_sum)
        gpu, host = int(total + 0.5), self.host(batch)
        return Price(self.step_ns(gpu, host), gpu, host, self.shares(batch))

    def shares(self, batch: Batch) -> tuple[float, float, float, float]:
        """Fractions of the GPU time by source (slowing down under load is not counted)."""
        a, b, c, d = self._tokens(batch)[1]
        e, f, g, h = self._samples(batch)[1]
        parts = [a + e, b + f, c + g, d + h]
        if batch.decode_count:
            curve, total = self._decode_curve(batch), batch.decode_context_sum
            parts[curve.source(total)] += curve.at(total)
        if batch.prefill:
            ns, source = self._prefill(batch)
            parts[source] += ns
        if batch.bytes_moved:
            parts[ROOFLINE] += self._roofline.copy_ns(batch.bytes_moved)
        a, b, c, d = parts
        whole = a + b + c + d
        return (a / whole, b / whole, c / whole, d / whole) if whole else (0.0, 0.0, 0.0, 1.0)

    def _constant_ns(self, batch: Batch) -> float:
        """Everything but decode attention: what does not change along a decode run."""
        total = self._tokens(batch)[0]
        if batch.prefill:
            total = total + self._prefill(batch)[0]
        if self._slowdown and total > self._cool_ns:
            total = total + (total - self._cool_ns) * self._slowdown
        total = total + self._samples(batch)[0]
        if batch.bytes_moved:
            total = total + self._roofline.copy_ns(batch.bytes_moved)
        return total

    def _tokens(self, batch: Batch) -> tuple[float, _Parts]:
        tokens = batch.linear_tokens + batch.padded_tokens
        if tokens < len(self._padded):
            tokens = self._padded[tokens]
        cost = self._token_costs.get(tokens)
        if cost is None:
            cost = self._token_costs[tokens] = _sum_at(self._per_token, tokens)
        return cost

    def _samples(self, batch: Batch) -> tuple[float, _Parts]:
        cost = self._sample_costs.get(batch.sampled)
        if cost is None:
            cost = self._sample_costs[batch.sampled] = _sum_at(self._per_sample, batch.sampled)
        return cost

    def _prefill(self, batch: Batch) -> tuple[float, int]:
        per_request = batch.attention == "per_request"
        ns, source = prefill_ns(self._attention, batch.prefill, per_request)
        if batch.decode_count and not per_request:
            ns = max(0.0, ns - self._attention.floor)
        return ns * self._layers, source

    def _decode_curve(self, batch: Batch) -> Curve:
        key = (batch.decode_count, batch.queries_per_sequence, batch.attention)
        curve = self._decode_curves.get(key)
        if curve is None:
            count, queries, kind = key
            curve = decode_over_sum(self._attention, count, queries, kind == "per_request", self._layers)
            self._decode_curves[key] = curve
        return curve


def _sum_at(curves: Sequence[Curve], x: int) -> tuple[float, _Parts]:
    parts = [0.0, 0.0, 0.0, 0.0]
    for curve in curves:
        parts[curve.source(x)] += curve.at(x)
    total = parts[0] + parts[1] + parts[2] + parts[3]
    return total, (parts[0], parts[1], parts[2], parts[3])
