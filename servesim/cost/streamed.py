"""Attention of a served step where it differs from what tables measure, as fitted to recorded steps."""

from __future__ import annotations

from math import ceil

from servesim.cost.attention import Attention, Excess
from servesim.cost.curve import ROOFLINE, Curve
from servesim.cost.host import HostTerms

LONG_PROMPT = 1024
"""Prompt tokens in a step from which on decodes beside them cost no more."""
FILLED = 132
"""Sequences times KV heads that give every multiprocessor of an H100 a decode of its own."""

_PARTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Knots of decode: reading over starting."""


class BesidePrompt:
    """Extra time of decodes beside a prompt over the two apart, where no table has such calls.

    The kernel that holds both does not split a decode's context over the GPU: one block reads the KV of a sequence's
    KV head from end to end. That takes time until every multiprocessor has such a block, and more KV is then read below
    the rate of decodes alone. In proportion to the tokens of the prompt up to `LONG_PROMPT`: recorded steps show next
    to nothing beside a cached prompt's last 16 tokens (Llama-2-70B, CodeLlama-34B). Counted as formula."""

    def __init__(self, filling_ns: float, ns_per_token: float, kv_heads: int, window: int = 0) -> None:
        """Take the time of a layer once the GPU is filled, and that of each token of context."""
        self._filling, self._per_token = filling_ns, ns_per_token
        self._kv_heads, self._window = kv_heads, window

    @classmethod
    def of(cls, host: HostTerms, kv_heads: int, token_ns: float, window: int) -> BesidePrompt | None:
        """Build from host terms and the time that reading one token's KV takes at the data sheet's rate; None where the
        terms have no such excess."""
        if not host.mixed_filling and not host.mixed_kv_excess:
            return None
        return cls(host.mixed_filling, host.mixed_kv_excess * token_ns, kv_heads, window)

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """See `Excess`."""
        if self._window and context > self._window:
            context = self._window
        ns = self._filling * min(1.0, count * self._kv_heads / FILLED) + self._per_token * count * context
        return ns * min(1.0, new / LONG_PROMPT), ROOFLINE


class StreamedDecode:
    """Attention whose decode reads the KV at one rate, as a served step does: there the weights of every layer have
    pushed the KV out of the cache. Tables repeat one layer's attention, which finds a small KV in the cache and changes
    regime where it no longer fits. Counted as formula: the rate is the data sheet's, its share fitted to recorded
    steps.

    What a larger batch takes longer than one sequence on empty contexts, its blocks starting in waves, hides behind the
    reading of other blocks: of `starts` beside `reads` the part `starts / (starts + reads)` remains. (Measured calls of
    the H100 table, 40 heads, 256 to 2,048 sequences of 64 to 512 tokens: .64 to .31 remain, by this .71 to .24.)"""

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
        slope = count * self._ns_per_token
        starts = max(0.0, self._inner.decode(count).at(0.0) - self.floor)
        xs = sorted({ceil(part * starts / slope) for part in _PARTS})
        if self.window:
            xs = [*(x for x in xs if x < self.window), self.window]
        reads = [x * slope for x in xs]
        ys = [self.floor + ns + (starts * starts / (starts + ns) if starts else 0.0) for ns in reads]
        return Curve(xs, ys, ROOFLINE, last_slope=0.0 if self.window else slope)

    def prefill(self, count: int) -> Curve:
        return self._inner.prefill(count)

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        return self._inner.prefill_at(count, each)
