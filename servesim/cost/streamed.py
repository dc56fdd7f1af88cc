"""Attention of a served step where it differs from what tables measure, as fitted to recorded steps."""

from __future__ import annotations

from servesim.cost.attention import Attention, Excess
from servesim.cost.curve import ROOFLINE, Curve

LONG_PROMPT = 1024
"""Prompt tokens in a step from which on decodes beside them cost no more."""


class BesidePrompt:
    """Extra time of decodes beside a prompt over the two apart, where no table has such calls: the same for every
    decode, whatever its context, in proportion to the tokens of the prompt up to `LONG_PROMPT`. Recorded steps show
    this on H100: nothing to speak of beside a cached prompt's last 16 tokens (Llama-2-70B, CodeLlama-34B), and the
    more the longer the prompt (Qwen3-14B). Counted as formula."""

    def __init__(self, ns_per_decode: float) -> None:
        self._ns = ns_per_decode

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """See `Excess`."""
        return self._ns * count * min(1.0, new / LONG_PROMPT), ROOFLINE


class StreamedDecode:
    """Attention whose decode reads the KV at one rate on top of the fixed cost of the call, as a served step
    does: there the weights of every layer have pushed the KV out of the cache. Tables repeat one layer's
    attention, which finds a small KV in the cache and changes regime where it no longer fits. Counted as formula:
    the rate is the data sheet's, its share fitted to recorded steps."""

    def __init__(self, inner: Attention, ns_per_token: float) -> None:
        """Take `ns_per_token`, the time to read the KV of one token in one layer."""
        self._inner = inner
        self._ns_per_token = ns_per_token
        self.floor = inner.floor
        self.window: int = getattr(inner, "window", 0)
        self.cached = inner.cached
        self.mixed: Excess | None = inner.mixed
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
