"""Attention of a served step where it differs from the tables' measurements, fitted to recorded steps."""

from __future__ import annotations

from math import ceil

from servesim.cost.attention import Attention, Cached, Excess
from servesim.cost.curve import ROOFLINE, Curve
from servesim.cost.curves import upper
from servesim.cost.formula import line
from servesim.cost.host import HostTerms

LONG_PROMPT = 1024
"""Number of prompt tokens in a step above which the cost of decodes batched with them no longer grows."""
FILLED = 132
"""Number of sequences times KV heads at which every multiprocessor of an H100 has a decode block of its own."""

_PARTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Knots of the decode curve, as ratios of the time to read KV to the time to start blocks."""


class BesidePrompt:
    """Extra time of decodes batched with a prompt, compared with running the two separately, if no table has such
    calls.

    The kernel that runs both does not split a decode's context over the GPU: one block reads the KV of a sequence's KV
    head from end to end. The excess has a part that grows until every multiprocessor has such a block, and a part for
    every token of KV, which is read more slowly than in decode-only calls. Both are proportional to the tokens of the
    prompt up to `LONG_PROMPT`: recorded steps show almost no excess when only the last 16 tokens of a cached prompt are
    computed (Llama-2-70B, CodeLlama-34B). Counted as formula.
    """

    def __init__(self, filling_ns: float, ns_per_token: float, kv_heads: int, window: int = 0) -> None:
        """Set the excess of a layer once the GPU is filled, and the excess for each token of context."""
        self._filling, self._per_token = filling_ns, ns_per_token
        self._kv_heads, self._window = kv_heads, window

    @classmethod
    def of(cls, host: HostTerms, kv_heads: int, token_ns: float, window: int) -> BesidePrompt | None:
        """Build from host terms and the time to read one token's KV at the data sheet's rate. Return None if the terms
        have no such excess."""
        if not host.mixed_filling and not host.mixed_kv_excess:
            return None
        return cls(host.mixed_filling, host.mixed_kv_excess * token_ns, kv_heads, window)

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """Return the excess and its source; see `Excess`."""
        if self._window and context > self._window:
            context = self._window
        ns = self._filling * min(1.0, count * self._kv_heads / FILLED) + self._per_token * count * context
        return ns * min(1.0, new / LONG_PROMPT), ROOFLINE


class LimitedPrefill:
    """Attention whose prefill computes at no more than the rate of the engine's kernel. Counted as formula where that
    rate decides."""

    cached: Cached | None = None

    def __init__(self, inner: Attention, ns_per_pair: float) -> None:
        """Set `ns_per_pair`, the time of one query-key pair in one layer at the kernel's rate."""
        self._inner, self._ns_per_pair = inner, ns_per_pair
        self.decode = inner.decode
        self.floor, self.window = inner.floor, inner.window
        self.mixed: Excess | None = inner.mixed
        self.skew = inner.skew

    def prefill(self, count: int) -> Curve:
        return upper(self._inner.prefill(count), line(self.floor, count * self._ns_per_pair))

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        least = self.floor + count * each * self._ns_per_pair
        ns, source = self._inner.prefill_at(count, each)
        return (ns, source) if ns >= least else (least, ROOFLINE)


class StreamedDecode:
    """Attention whose decode reads the KV at a constant rate, as in a served step, in which the weights of every layer
    have evicted the KV from the cache. Tables repeat one layer's attention, which finds a small KV in the cache and
    changes regime once it no longer fits. Counted as formula: the rate is the data sheet's, multiplied by a fraction
    fitted to recorded steps.

    The extra time of a larger batch over one sequence on empty contexts, whose blocks start in waves, is hidden behind
    the reads of other blocks: with times `starts` and `reads`, the fraction `starts / (starts + reads)` of `starts`
    remains. (In the H100 table, at 40 heads and 256 to 2,048 sequences of 64 to 512 tokens, .64 to .31 remain; by this
    formula, .71 to .24.)
    """

    def __init__(self, inner: Attention, ns_per_token: float) -> None:
        """Set `ns_per_token`, the time to read the KV of one token in one layer."""
        self._inner = inner
        self._ns_per_token = ns_per_token
        self.floor = inner.floor
        self.window: int = getattr(inner, "window", 0)
        self.cached = inner.cached
        self.mixed: Excess | None = inner.mixed
        self.skew = inner.skew
        self._curves: dict[int, Curve] = {}

    def decode(self, count: int) -> Curve:
        curve = self._curves.get(count)
        if curve is None:
            curve = self._curves[count] = self._streamed(count)
        return curve

    def _streamed(self, count: int) -> Curve:
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
