"""Times of latent attention over selected tokens in one layer (DeepSeek-V3.2, GLM-5), without its projections.

An indexer scores every token of the context with small keys, and attention reads only a fixed number of the best ones,
like the size of a window. Tables measure the whole module, projections included; the projections are priced separately
and subtracted, as for latent attention (`servesim.cost.latent`). Prompts in vLLM and SGLang were measured with kernels
launched one by one, and prompts of up to the number of selected tokens took the same .75 ms for 1 sequence as for
1,024, which cannot be right (16,384 tokens take 4.5 ms in TensorRT-LLM). Rows up to twice the shortest time are
therefore left out, and below the remaining rows the time is linear, starting from the time of a decode step. The cost
that cached tokens add to a prompt is the indexer's arithmetic over them, by formula; without a table everything is
priced by formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.attention import GridAttention
from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, ROOFLINE, Curve
from servesim.cost.curves import rise
from servesim.cost.formula import LAUNCH_NS, Roofline
from servesim.cost.grid import Entries, Grid, work
from servesim.cost.linear import GemmTables
from servesim.hardware.layers import Indexer, Latent

_LAUNCHED = 2.0
"""Minimum time of a prompt row, as a multiple of the shortest time with the same heads."""
_COUNTS, _TOKENS = tuple(2.0**i for i in range(13)), tuple(2**i for i in range(18))
"""Numbers of sequences and tokens at which the formula has knots."""


class IndexedPrefill:
    """Time of prefill chunks over cached tokens: that of a chunk with the same work, plus that of scoring the cached
    tokens."""

    def __init__(self, attention: GridAttention, pair_ns: float) -> None:
        """Initialize; `pair_ns` is the time to score one token for one query."""
        self._attention, self._pair_ns = attention, pair_ns

    def at(self, new: int, past: int) -> tuple[float, int]:
        """Return the time and source for `new` tokens over `past` cached ones."""
        ns, _ = self._attention.prefill_at(1.0, work(new, past, self._attention.window))
        return ns + new * past * self._pair_ns, EXTRAPOLATED


def sparse_attention(gemms: GemmTables, latent: Latent, hidden: int, heads: int, kv_dtype: str) -> GridAttention:
    """Return the sparse attention of `heads` heads on one GPU."""
    indexer = latent.indexer
    assert indexer is not None
    tables = gemms.tables if gemms.roofline == gemms.measured_on else None
    found: list[Entries] = []
    for op in ("dsa_decode", "dsa_prefill"):
        rows = tables.rows(op, "bf16" if kv_dtype == "fp16" else kv_dtype) if tables is not None else {}
        mine = (rows["k"] == hidden) & (rows["heads"] == heads) if rows else np.zeros(0, dtype=bool)
        if mine.any():
            least = found[0][0][1].ys[0] if found else None
            found.append(_measured(gemms, {c: rows[c][mine] for c in rows}, latent, hidden, heads, least))
    if len(found) == 2:
        decode, prefill = _extended(found[0], float(indexer.topk)), found[1]
    else:
        decode, prefill = _by_formula(gemms.roofline, latent, indexer, heads, kv_dtype)
    attention = GridAttention(Grid(decode), Grid(prefill), decode[0][1].at(0.0), indexer.topk)
    attention.cached = IndexedPrefill(attention, _pair_ns(gemms.roofline, indexer))
    return attention


def _measured(
    gemms: GemmTables,
    rows: dict[str, NDArray[Any]],
    latent: Latent,
    hidden: int,
    heads: int,
    floor: float | None,
) -> Entries:
    """Return the curves by number of sequences, as functions of context (decode) or work (prefill, which begins at
    `floor`), without the projections."""
    assert latent.indexer is not None
    projections = projections_of(gemms, latent, hidden, heads)
    least = float(rows["time_us"].min()) * _LAUNCHED
    lines: dict[int, dict[float, float]] = {}
    columns = (rows[c].tolist() for c in ("batch", "new_tokens", "past_tokens", "time_us"))
    for batch, new, past, us in zip(*columns, strict=True):
        decodes = bool(past)
        if not decodes and us < least:
            continue
        x = past + 1.0 if decodes else work(new, 0, latent.indexer.topk)
        rest = us * 1e3 - projections(batch * new)
        lines.setdefault(batch, {} if floor is None else {0.0: floor})[x] = max(LAUNCH_NS, rest)
    entries: Entries = []
    for batch in sorted(lines):
        xs = sorted(lines[batch])
        ys = np.maximum.accumulate([lines[batch][x] for x in xs]).tolist()
        entries.append((float(batch), Curve(xs, ys, INTERPOLATED, last_slope=rise(xs, ys))))
    return entries


def projections_of(gemms: GemmTables, latent: Latent, hidden: int, heads: int) -> Callable[[float], float]:
    """Return the time of the projections included in the tables' rows, as a function of the number of tokens."""
    expansion = (heads * (latent.nope_dim + latent.v_dim), latent.kv_rank)
    linears = [gemms.curve(n, k, "fp8_block") for n, k in latent.linears(hidden, heads) if (n, k) != expansion]
    return lambda tokens: sum(curve.at(tokens) for curve in linears)


def _extended(decode: Entries, topk: float) -> Entries:
    """Extend every curve past its last context at the lowest time per additional context token that any batch showed
    beyond the number of selected tokens (large batches were measured only on short contexts)."""
    known = [(c.ys[-1] - c.at(topk)) / (n * (c.xs[-1] - topk)) for n, c in decode if c.xs[-1] > 2 * topk]
    best = min((slope for slope in known if slope > 0.0), default=0.0)
    return [(n, Curve(c.xs, c.ys, c.knot_source, last_slope=n * best)) for n, c in decode]


def _by_formula(
    roofline: Roofline, latent: Latent, indexer: Indexer, heads: int, kv_dtype: str
) -> tuple[Entries, Entries]:
    """Return the formula curves of decode and prefill: the indexer's keys are read once per sequence, and the selected
    number of tokens is attended to in the form of compressed vectors."""
    rate = roofline.rate
    pair = 2.0 * heads * (latent.width + latent.kv_rank) / roofline.peak("bf16")
    score, key = _pair_ns(roofline, indexer), indexer.key_bytes / rate
    token = (latent.token_bytes(kv_dtype) - indexer.key_bytes) / rate
    fixed = 4 * roofline.launch_ns + 2.0 * heads * (latent.nope_dim + latent.v_dim) * latent.kv_rank / rate
    topk = float(indexer.topk)
    decode: Entries = []
    prefill: Entries = []
    for count in _COUNTS:
        scored, read = count * max(score, key), count * max(pair, token)
        chosen = fixed + topk * (scored + read)
        decode.append((count, Curve([0.0, topk], [fixed, chosen], ROOFLINE, last_slope=scored, beyond=ROOFLINE)))
        xs = [work(n, 0, indexer.topk) for n in _TOKENS]
        ys = [fixed + count * n * ((n + 1) / 2 * score + min(n, topk) * pair) for n in _TOKENS]
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        prefill.append((count, Curve(xs, ys, ROOFLINE, last_slope=slope, beyond=ROOFLINE)))
    return decode, prefill


def _pair_ns(roofline: Roofline, indexer: Indexer) -> float:
    """Return the time to score one token for one query, using fp8 if the GPU supports it."""
    dtype = "fp8" if "fp8" in roofline.gpu.flops else "bf16"
    return 2.0 * indexer.heads * indexer.dim / roofline.peak(dtype)
