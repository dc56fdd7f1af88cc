"""Times of attention in one layer: decode depends on the KV read, prefill on the work.

The tables measure decode by (sequences, context) and prefill of whole prompts by (sequences, length), for a grid of
head counts. Everything else follows from the structure of the kernels:

- **Decode** costs as much as reading the KV of the batch, so it depends on the number of sequences and on the sum of
  their contexts; between measured batch sizes it is linear at equal context. The extra cost of unequal contexts over
  equal ones with the same sum is measured (`SkewExcess`) or ignored.
- **Prefill** of c tokens over p cached ones does the work of c * (p + c/2) query-key pairs and a fixed part per token.
  It takes as long as a whole prompt with that much work. With cached tokens, it takes at least as long as one decode
  step over the same context (the KV must be read), and counts as extrapolated. If the table has cached context as an
  axis, a chunk alone in its step takes the measured time. The chunks of one step run in one kernel, so n chunks of work
  W_i are priced as (sum W)^2 / sum W^2 equal chunks of the same total.
- **Decodes batched with a prompt** share its kernel and fixed cost; their additional cost is measured (`MixedExcess`)
  or ignored.
- **Sliding windows** limit the tokens that a query attends to. They are measured if the tables have the window, else
  priced as full attention over the window's context (decode) or the query-key pairs inside it (prefill).
- **KV heads beyond the table** (multi-head models): decode splits over sequences times KV heads, so 40 KV heads cost as
  much as 8 KV heads with five times the sequences. **Head counts in between** are interpolated linearly. **Head sizes
  in between** scale the part above the fixed cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from servesim.cost.curve import EXTRAPOLATED, ROOFLINE, Curve
from servesim.cost.curves import upper
from servesim.cost.formula import Roofline
from servesim.cost.grid import (
    Grid,
    HeadShape,
    at_best_rate,
    decode_grid,
    in_window,
    prefill_grid,
    window_rows,
    work,
)
from servesim.cost.measured import CachedPrefill, MixedExcess, SkewExcess
from servesim.cost.tables import KernelTables

FROM_STATE = 1
"""Value of `window` for layers that keep a state: earlier tokens cost nothing."""


class Excess(Protocol):
    """Extra time of decodes batched with a prompt, compared with running the two separately."""

    def at(self, count: int, context: float, new: int) -> tuple[float, int]:
        """Return the extra time of one layer in nanoseconds, and its source, for `count` decodes of mean context
        `context` batched with a prompt of `new` tokens."""
        ...


class Cached(Protocol):
    """Times of prefill chunks over cached tokens."""

    def at(self, new: int, past: int) -> tuple[float, int]:
        """Return the nanoseconds of one layer, and their source, for `new` tokens over `past` cached ones."""
        ...


class Attention(Protocol):
    """Attention as the cost model sees it; times are nanoseconds of one layer."""

    floor: float
    """Fixed cost of a call. A mixed batch, being one kernel, pays it once instead of twice."""
    window: int
    """Number of tokens that a query attends to (0: all; `FROM_STATE`: none, only a state)."""
    cached: Cached | None
    """Times of prefill chunks over cached tokens, if measured."""
    mixed: Excess | None
    """Extra time of decodes batched with a prompt, if measured."""
    skew: SkewExcess | None
    """Extra time of decodes with unequal contexts, if measured."""

    def decode(self, count: int) -> Curve:
        """Return the decode time of `count` sequences as a function of their mean context."""
        ...

    def prefill(self, count: int) -> Curve:
        """Return the prefill time of `count` equal chunks as a function of the work of each."""
        ...

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        """Return the time and source of `count` chunks with work `each`."""
        ...


class GridAttention:
    """Attention from measured curves."""

    cached: Cached | None = None
    mixed: Excess | None = None
    skew: SkewExcess | None = None

    def __init__(self, decode: Grid, prefill: Grid, floor: float, window: int = 0) -> None:
        self._decode, self._prefill = decode, prefill
        self.prefill_at = prefill.at  # no wrapper method, since calling it would slow down pricing noticeably
        self.floor, self.window = floor, window

    def decode(self, count: int) -> Curve:
        return self._decode.curve(count)

    def prefill(self, count: int) -> Curve:
        return self._prefill.curve(count)


class TableAttention(GridAttention):
    """Attention with keys and values for each KV head."""

    def __init__(
        self,
        tables: KernelTables,
        shape: HeadShape,
        kv_dtype: str,
        slowdown: float = 1.0,
        window: int = 0,
    ) -> None:
        """Build from the curves of `tables`; `slowdown` is the memory bandwidth of the measured GPU divided by that of
        the priced GPU."""
        dtype = "bf16" if kv_dtype == "fp16" else kv_dtype
        decode, prefill = tables.rows("attention_decode", dtype), tables.rows("attention_prefill", dtype)
        measured = window_rows(tables, shape, dtype, window)
        if measured is not None:
            decode, prefill = measured
        entries, spread = decode_grid(decode, shape, slowdown)
        bounded = in_window(entries, window, measured is not None) if window else at_best_rate(entries)
        # if the window is not measured, work inside it takes as long as the same work without a window
        whole = prefill_grid(prefill, shape, window if measured is not None else 0)
        super().__init__(Grid(bounded, spread), Grid(whole), entries[0][1].at(0.0), window)
        if not window and slowdown == 1.0:
            self.cached = CachedPrefill.of(prefill, shape)
            self.mixed = MixedExcess.of(tables.rows("attention_mixed", dtype), decode, prefill, shape)
            self.skew = SkewExcess.of(tables.rows("attention_skew", dtype), shape)


class FormulaAttention:
    """Attention priced by formula: linear in the KV read and in the query-key pairs computed."""

    cached: Cached | None = None
    mixed: Excess | None = None
    skew: SkewExcess | None = None

    def __init__(self, floor: float, per_context: float, per_pair: float, window: int = 0) -> None:
        """Set the nanoseconds of a call, of reading one token of context, and of one query-key pair."""
        self.floor, self.window = floor, window
        self._per_context, self._per_pair = per_context, per_pair

    def decode(self, count: int) -> Curve:
        slope = count * self._per_context
        if not self.window:
            return Curve([0.0], [self.floor], ROOFLINE, last_slope=slope, beyond=ROOFLINE)
        full = self.floor + slope * self.window
        return Curve([0.0, self.window], [self.floor, full], ROOFLINE, last_slope=0.0, beyond=ROOFLINE)

    def prefill(self, count: int) -> Curve:
        return Curve([0.0], [self.floor], ROOFLINE, last_slope=count * self._per_pair, beyond=ROOFLINE)

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        return self.floor + count * self._per_pair * each, ROOFLINE


def roofline_attention(
    roofline: Roofline, shape: HeadShape, kv_bytes: float, window: int = 0, dtype: str = "bf16"
) -> FormulaAttention:
    """Return attention priced as KV bytes divided by bandwidth (decode) or arithmetic in `dtype` divided by its peak
    rate (prefill)."""
    flops = 4.0 * shape.heads * shape.head_dim  # two matrix products per query-key pair
    data = 2.0 * shape.kv_heads * shape.head_dim * kv_bytes
    return FormulaAttention(roofline.launch_ns, data / roofline.rate, flops / roofline.peak(dtype), window)


def decode_over_sum(attention: Attention, count: int, queries: int, per_request: bool, layers: int) -> Curve:
    """Return the decode attention time of all layers as a function of the sum of the contexts of `count` sequences.

    With several `queries` per sequence (verification) it is at least the prefill time of `queries` tokens over the
    context. `per_request`: one launch per sequence, each priced at the mean context.
    """
    launches, together = (count, 1) if per_request else (1, count)
    curve = attention.decode(together)
    if queries > 1:
        curve = upper(curve, _verification(attention, together, queries))
    return curve.scaled(float(layers * launches), float(count))


def _verification(attention: Attention, count: int, queries: int) -> Curve:
    """Return the prefill time of `queries` tokens for each of `count` sequences, as a function of their mean
    context."""
    curve, window = attention.prefill(count), attention.window
    # the work of a sequence is linear in its context, so both curves share their knots; the context in the cache cannot
    # matter beyond the window
    past = [0.0, *(p for w in curve.xs if (p := (w - work(queries, 0.0, window)) / queries) > 0.0)]
    if window:
        past = [*(p for p in past if p < window), float(window)]
    pairs = [work(queries, p, window) for p in past]
    sources = [max(EXTRAPOLATED, curve.source(w)) for w in pairs]
    tail = 0.0 if window else curve.slopes[-1] * queries
    return Curve([p + queries for p in past], [curve.at(w) for w in pairs], sources, last_slope=tail)


def prefill_ns(attention: Attention, pieces: Sequence[tuple[int, int]], per_request: bool) -> tuple[float, int]:
    """Return the time of one layer's attention over prefill `pieces` [(new, past)], and its source."""
    if attention.window == FROM_STATE:
        pieces = [(new, 0) for new, _ in pieces]
    if len(pieces) == 1:
        new, past = pieces[0]
        if past and attention.cached is not None:
            return attention.cached.at(new, past)
        ns, source = attention.prefill_at(1.0, work(new, past, attention.window))
        return _over_cache(attention, ns, source, 1, new + past) if past else (ns, source)
    if per_request:
        parts = [prefill_ns(attention, [piece], False) for piece in pieces]
        return sum(ns for ns, _ in parts), max(source for _, source in parts)
    total, squares, context, cached, window = 0.0, 0.0, 0, 0, attention.window
    for new, past in pieces:
        pairs = work(new, past, window)
        total += pairs
        squares += pairs * pairs
        context += new + past
        cached += past
    ns, source = attention.prefill_at(total * total / squares, squares / total)
    return _over_cache(attention, ns, source, len(pieces), context / len(pieces)) if cached else (ns, source)


def _over_cache(attention: Attention, ns: float, source: int, count: int, context: float) -> tuple[float, int]:
    """Return the time and source of prefill over cached tokens: at least the time of a decode step over the same
    context, which reads the same KV."""
    if source == ROOFLINE:
        return ns, source
    return max(ns, attention.decode(count).at(context)), EXTRAPOLATED
