"""Times of attention in one layer: batched decode by KV read, prefill by work.

The tables measure decode by (sequences, context) and prefill of whole prompts by (sequences, length), for a
grid of head counts. Everything else follows from the structure of the kernels:

- **Decode** costs what reading the KV of the batch costs, so it depends on the number of sequences and on
  the sum of their contexts; between measured batch sizes it is linear at equal context. Contexts of unequal
  length cost what equal ones of the same sum cost (split-KV balances them; the effect is left out).
- **Prefill** of c tokens over p cached ones does the work of c * (p + c/2) query-key pairs and a fixed part
  per token. It takes the time of the whole prompt with that much work, and at least that of one decode step
  over the same context (the KV must be read). Pieces of one step run in one kernel: n pieces of work W_i are
  priced as (sum W)^2 / sum W^2 equal pieces of the same total. No table has cached context as an axis, so
  that part counts as extrapolated.
- **KV heads beyond the table** (multi-head models): decode splits over sequences times KV heads, so 40 KV
  heads are five times the sequences of 8. **Head counts in between** are linear. **Head sizes in between**
  scale the part above the fixed cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, ROOFLINE, Curve, blend, upper
from servesim.cost.formula import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY, LAUNCH_NS
from servesim.cost.tables import KernelTables
from servesim.hardware.gpu import Gpu

TOKEN_WORK = 256.0
"""Query-key pairs that the fixed work of a new token (its query, output, and tile edges) is worth. It lets
times of short and long prompts lie on nearly straight lines: of 0 to 1024 it left the smallest median error
on held-out points of the A100 table, and close to it on H100."""


class Attention(Protocol):
    """What the cost model asks of attention; nanoseconds of one layer."""

    floor: float
    """Fixed cost of a call: what a mixed batch, one kernel, pays once instead of twice."""

    def decode(self, count: float) -> Curve:
        """Decode of `count` sequences over their mean context."""
        ...

    def prefill(self, count: float) -> Curve:
        """Prefill of `count` equal pieces over the work of each."""
        ...


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads on one GPU, after tensor parallelism."""

    heads: int
    kv_heads: int
    head_dim: int


class TableAttention:
    """Attention from measured points."""

    def __init__(self, tables: KernelTables, shape: HeadShape, kv_dtype: str, slowdown: float = 1.0) -> None:
        """`slowdown`: memory bandwidth of the GPU measured on over that of the GPU priced."""
        dtype = "bf16" if kv_dtype == "fp16" else kv_dtype
        decode, prefill = tables.rows("attention_decode", dtype), tables.rows("attention_prefill", dtype)
        self._decode, self._spread = _decode_grid(decode, shape, slowdown)
        self._prefill = _prefill_grid(prefill, shape)
        self.floor = self._decode[0][1].at(0.0)

    def decode(self, count: float) -> Curve:
        return _between(self._decode, count * self._spread)

    def prefill(self, count: float) -> Curve:
        return _between(self._prefill, count)


class RooflineAttention:
    """Attention by formula: KV bytes over bandwidth, or arithmetic over peak, at the assumed efficiencies."""

    def __init__(self, gpu: Gpu, shape: HeadShape, kv_bytes: float) -> None:
        self.floor = LAUNCH_NS
        flops = 4.0 * shape.heads * shape.head_dim  # two matrix products for every query-key pair
        self._per_pair = flops * 1e9 / (gpu.flops["bf16"] * COMPUTE_EFFICIENCY)
        data = 2.0 * shape.kv_heads * shape.head_dim * kv_bytes
        self._per_context = data * 1e9 / (gpu.bandwidth * BANDWIDTH_EFFICIENCY)

    def decode(self, count: float) -> Curve:
        return Curve([0.0], [self.floor], ROOFLINE, last_slope=count * self._per_context, beyond=ROOFLINE)

    def prefill(self, count: float) -> Curve:
        return Curve([0.0], [self.floor], ROOFLINE, last_slope=count * self._per_pair, beyond=ROOFLINE)


def decode_over_sum(attention: Attention, count: int, queries: int, per_request: bool, layers: int) -> Curve:
    """Decode attention of all layers over the sum of the contexts of `count` sequences.

    With several `queries` per sequence (verification) it is at least the prefill of that many tokens over the
    context. `per_request`: one launch per sequence, each of the mean context.
    """
    launches, together = (count, 1) if per_request else (1, count)
    curve = attention.decode(together)
    if queries > 1:
        # the work of a sequence is linear in its context, so the knots of the one are knots of the other
        verify = attention.prefill(together)
        past = [(w - work(queries, 0.0)) / queries for w in verify.xs]
        past = [0.0, *(p for p in past if p > 0.0)]
        times = [verify.at(work(queries, p)) for p in past]
        sources = [max(EXTRAPOLATED, verify.source(work(queries, p))) for p in past]
        tail = verify.slopes[-1] * queries
        curve = upper(curve, Curve([p + queries for p in past], times, sources, last_slope=tail))
    return curve.scaled(float(layers * launches), float(count))


def prefill_ns(attention: Attention, pieces: Sequence[tuple[int, int]], per_request: bool) -> tuple[float, int]:
    """Time of one layer's attention over prefill `pieces` [(new, past)], and its source."""
    if per_request and len(pieces) > 1:
        parts = [prefill_ns(attention, [piece], False) for piece in pieces]
        return sum(ns for ns, _ in parts), max(source for _, source in parts)
    total, squares, context, cached = 0.0, 0.0, 0, 0
    for new, past in pieces:
        pairs = work(new, past)
        total += pairs
        squares += pairs * pairs
        context += new + past
        cached += past
    count = total * total / squares
    curve = attention.prefill(count)
    each = squares / total
    ns, source = curve.at(each), curve.source(each)
    if cached and source != ROOFLINE:
        source = EXTRAPOLATED
        ns = max(ns, attention.decode(len(pieces)).at(context / len(pieces)))
    return ns, source


def work(new: Any, past: Any) -> Any:
    """Work of a prefill piece, in query-key pairs: keys of the cache, half the new ones, and a fixed part."""
    return new * (past + new / 2 + TOKEN_WORK)


_Grid = list[tuple[float, Curve]]
"""Curves by number of sequences, ascending."""


def _between(grid: _Grid, count: float) -> Curve:
    """The curve at `count` sequences, linear between the measured numbers of sequences."""
    i = bisect_right(grid, count, key=lambda entry: entry[0]) - 1
    if i < 0:
        return grid[0][1]
    low, curve = grid[i]
    if low == count:
        return curve
    if i + 1 == len(grid):
        beyond = curve.scaled(count / low)
        return Curve(beyond.xs, beyond.ys, EXTRAPOLATED, last_slope=beyond.slopes[-1])
    high, above = grid[i + 1]
    return blend(curve, above, (count - low) / (high - low))


def _decode_grid(rows: dict[str, NDArray[Any]], shape: HeadShape, slowdown: float) -> tuple[_Grid, float]:
    """Curves over mean context by sequences, and how many measured sequences one of ours stands for."""
    dim = _nearest_above(rows["head_dim"], shape.head_dim)
    rows = _where(rows, head_dim=dim)
    kv_grid = [k for k in np.unique(rows["kv_heads"]).tolist() if shape.kv_heads % k == 0]
    kv_heads = max(kv_grid)
    spread = shape.kv_heads // kv_heads
    exact = spread == 1 and dim == shape.head_dim and slowdown == 1.0
    grid = _head_grid(_where(rows, kv_heads=kv_heads), shape.heads / spread, "past_tokens", exact)
    return _at_best_rate(_rescaled(grid, shape.head_dim / dim * slowdown)), float(spread)


def _prefill_grid(rows: dict[str, NDArray[Any]], shape: HeadShape) -> _Grid:
    """Curves over the work of a sequence by sequences."""
    dim = _nearest_above(rows["head_dim"], shape.head_dim)
    rows = _where(rows, head_dim=dim)
    measured = np.unique(rows["kv_heads"][rows["heads"] >= shape.heads]).tolist()
    kv_heads = min(measured or np.unique(rows["kv_heads"]).tolist(), key=lambda k: abs(k - shape.kv_heads))
    exact = kv_heads == shape.kv_heads and dim == shape.head_dim
    grid = _head_grid(_where(rows, kv_heads=kv_heads), float(shape.heads), "new_tokens", exact)
    return _rescaled(grid, shape.head_dim / dim)


def _head_grid(rows: dict[str, NDArray[Any]], heads: float, axis: str, exact: bool) -> _Grid:
    """Curves by sequences at `heads` query heads, linear between the measured numbers of heads."""
    counts = np.unique(rows["heads"]).tolist()
    i = bisect_right(counts, heads) - 1
    low = counts[max(i, 0)]
    grid = _curves(_where(rows, heads=low), axis, MEASURED if exact and low == heads else INTERPOLATED)
    if low == heads:
        return grid if exact else _marked(grid)
    if i < 0 or i + 1 == len(counts):
        return _rescaled(grid, heads / low)
    high = counts[i + 1]
    above = dict(_curves(_where(rows, heads=high), axis, INTERPOLATED))
    weight = (heads - low) / (high - low)
    mixed = [(n, blend(curve, above[n], weight)) for n, curve in grid if n in above]
    return mixed if exact else _marked(mixed)


def _curves(rows: dict[str, NDArray[Any]], axis: str, source: int) -> _Grid:
    grid: _Grid = []
    for batch in np.unique(rows["batch"]).tolist():
        mask = rows["batch"] == batch
        x, y = rows[axis][mask].astype(np.float64), rows["time_us"][mask] * 1e3
        # a decode step attends the cached tokens and its own
        x = x + 1.0 if axis == "past_tokens" else work(x, 0.0)
        order = np.argsort(x)
        grid.append((float(batch), Curve(x[order].tolist(), y[order].tolist(), source)))
    return grid


def _marked(grid: _Grid) -> _Grid:
    """The same curves for a head shape that was not measured itself."""
    return [(n, Curve(c.xs, c.ys, EXTRAPOLATED, last_slope=c.slopes[-1])) for n, c in grid]


def _rescaled(grid: _Grid, factor: float) -> _Grid:
    """What lies above the fixed cost of a call, times `factor`."""
    if factor == 1.0:
        return grid
    floor = grid[0][1].at(0.0)
    scaled = []
    for n, c in grid:
        ys = [floor + max(0.0, y - floor) * factor for y in c.ys]
        scaled.append((n, Curve(c.xs, ys, EXTRAPOLATED, last_slope=c.slopes[-1] * factor)))
    return scaled


def _at_best_rate(grid: _Grid) -> _Grid:
    """Past its last context each batch reads KV at the best rate any batch reached (large batches were
    measured on short contexts only, short of the bandwidth)."""
    best = min(y / (n * x) for n, c in grid for x, y in zip(c.xs, c.ys, strict=True) if x > 0)
    return [(n, Curve(c.xs, c.ys, c.knot_source, last_slope=n * best)) for n, c in grid]


def _nearest_above(column: NDArray[Any], value: int) -> int:
    """The smallest measured value not below `value` (kernels pad to it), or the largest there is."""
    grid: list[int] = np.unique(column).tolist()
    return next((g for g in grid if g >= value), grid[-1])


def _where(rows: dict[str, NDArray[Any]], **equal: int) -> dict[str, NDArray[Any]]:
    mask = np.logical_and.reduce([rows[name] == value for name, value in equal.items()])
    return {name: column[mask] for name, column in rows.items()}
