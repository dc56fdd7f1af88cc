"""Decode attention of a served step: the KV comes from memory at one rate."""

from __future__ import annotations

from servesim.cost.attention import Attention
from servesim.cost.curve import ROOFLINE, Curve


class StreamedDecode:
    """Attention whose decode reads the KV at one rate on top of the fixed cost of the call, as a served step
    does: there the weights of every layer have pushed the KV out of the cache. Tables repeat one layer's
    attention, which finds a small KV in the cache and changes regime where it no longer fits. Counted as formula:
    the rate is the data sheet's, its share fitted to recorded steps."""

    def __init__(self, inner: Attention, ns_per_token: float) -> None:
        """`ns_per_token`: reading the KV of one token in one layer."""
        self._inner = inner
        self._ns_per_token = ns_per_token
        self.floor = inner.floor
        self.window: int = getattr(inner, "window", 0)
        self.cached = inner.cached
        self.mixed = inner.mixed
        self.skew = inner.skew

    def decode(self, count: int) -> Curve:
        fixed = self._inner.decode(count).at(0.0)
        slope = count * self._ns_per_token
        if not self.window:
            return Curve([0.0], [fixed], ROOFLINE, last_slope=slope, beyond=ROOFLINE)
        return Curve([0.0, self.window], [fixed, fixed + slope * self.window], ROOFLINE, last_slope=0.0)

    def prefill(self, count: int) -> Curve:
        return self._inner.prefill(count)

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        return self._inner.prefill_at(count, each)
