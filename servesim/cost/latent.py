"""Times of multi-head latent attention in one layer, without its projections.

Most tables measure DeepSeek-V3's whole attention module, projections included. Tokens of prefill and decode share the
projections of a step, so those are priced separately (like any linear layer) and subtracted here: the remainder is the
kernel, the expansion of the latents to heads, and small operators. Other tables measure only the kernel, and these take
precedence in decode, because the modules measured on Hopper contain operators that no engine launches one by one. The
expansion is added to a kernel's time: in prefill as the linear layer it is; in decode, where it is absorbed into
queries and outputs, as two batched matrix products that read its weights. Without a table the price follows a roofline:
a token's latent vector is read once for all heads, the weights of the expansion once per call, and arithmetic runs over
the latent width (decode, weights absorbed) or the width of a head (prefill).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.cost.attention import Attention, FormulaAttention, GridAttention
from servesim.cost.curve import INTERPOLATED, Curve
from servesim.cost.curves import rise
from servesim.cost.formula import LAUNCH_NS, Roofline
from servesim.cost.grid import Entries, Grid, at_best_rate, work
from servesim.cost.linear import GemmTables
from servesim.hardware.layers import Latent, dtype_bytes

DEEPSEEK = Latent(kv_rank=512, rope_dim=64, nope_dim=128, v_dim=128, q_rank=1536)
DEEPSEEK_HIDDEN = 7168
"""Latent sizes and hidden size of DeepSeek-V3, the measured model."""


def token_linears(latent: Latent, hidden: int, heads: int) -> list[tuple[int, int]]:
    """Return (output width, input width) of the projections that every token of a step passes through: queries,
    latents, output.

    The expansion of the latents to heads depends on the phase and belongs to attention.
    """
    expansion = (heads * (latent.nope_dim + latent.v_dim), latent.kv_rank)
    return [shape for shape in latent.linears(hidden, heads) if shape != expansion]


def latent_attention(gemms: GemmTables, latent: Latent, heads: int, kv_dtype: str) -> Attention:
    """Return the latent attention of `heads` heads on one GPU: as measured for the widths of DeepSeek-V3 and related
    models, otherwise by formula."""
    dtype = "bf16" if kv_dtype == "fp16" else kv_dtype
    widths = (latent.kv_rank, latent.rope_dim, latent.nope_dim, latent.v_dim)
    measured = (DEEPSEEK.kv_rank, DEEPSEEK.rope_dim, DEEPSEEK.nope_dim, DEEPSEEK.v_dim)
    if widths == measured and gemms.roofline == gemms.measured_on and gemms.tables is not None:
        decode = _measured(gemms, "decode", ("mla_kernel", "mla"), dtype, heads)
        prefill = _measured(gemms, "prefill", ("mla", "mla_kernel"), dtype, heads)
        if decode and prefill:
            return GridAttention(Grid(at_best_rate(decode)), Grid(prefill), decode[0][1].at(0.0))
    return _formula(gemms.roofline, latent, heads, kv_dtype)


def _measured(gemms: GemmTables, phase: str, ops: tuple[str, str], dtype: str, heads: int) -> Entries:
    """Return the curves of the first of `ops` that was measured in `phase` with these heads, or an empty list if none
    was."""
    assert gemms.tables is not None
    for op in ops:
        rows = gemms.tables.rows(f"{op}_{phase}", dtype)
        if rows and heads in rows["heads"]:
            beside = beside_of(op)(gemms, heads)
            return _entries(rows, heads, beside[phase == "prefill"])
    return []


Beside = Callable[[float], float]
"""Function from the number of tokens in a call to the nanoseconds to add to a measured time."""


def beside_of(op: str) -> Callable[[GemmTables, int], tuple[Beside, Beside]]:
    """Return the functions that give the time to add in decode and in prefill to the rows of a whole module or of the
    kernel alone."""
    return _kernel if op.startswith("mla_kernel") else _module


def _module(gemms: GemmTables, heads: int) -> tuple[Beside, Beside]:
    """Return the times of a module's non-attention work in decode and prefill, i.e. of its projections, which are
    subtracted."""
    curves = [gemms.curve(n, k, "bf16") for n, k in token_linears(DEEPSEEK, DEEPSEEK_HIDDEN, heads)]

    def projections(tokens: float) -> float:
        return -sum(curve.at(tokens) for curve in curves)

    return projections, projections


def _kernel(gemms: GemmTables, heads: int) -> tuple[Beside, Beside]:
    """Return the times of the attention work that a kernel's rows lack in decode and prefill: the expansion of the
    latents."""
    width = heads * (DEEPSEEK.nope_dim + DEEPSEEK.v_dim)
    expansion = gemms.curve(width, DEEPSEEK.kv_rank, "bf16")
    roofline = gemms.roofline
    absorbed = 2 * roofline.launch_ns + 2.0 * width * DEEPSEEK.kv_rank / roofline.rate  # in 2 bytes, read in every call
    return (lambda tokens: absorbed + 2.0 * tokens * width * DEEPSEEK.kv_rank / roofline.peak("bf16")), expansion.at


def _entries(rows: dict[str, NDArray[Any]], heads: int, beside: Beside) -> Entries:
    """Return the curves by number of sequences, as functions of context (decode) or work (prefill), with the added
    times included."""
    entries: Entries = []
    mine = rows["heads"] == heads
    for batch in np.unique(rows["batch"][mine]).tolist():
        at = mine & (rows["batch"] == batch)
        points = {}
        columns = (rows[c][at].tolist() for c in ("new_tokens", "past_tokens", "time_us"))
        for new, past, us in zip(*columns, strict=True):
            x = past + 1.0 if new == 1 and past else work(new, past)
            points[x] = max(LAUNCH_NS, us * 1e3 + beside(batch * new))
        xs = sorted(points)
        # differences of nearly equal times may decrease due to noise, but more context never costs less
        ys = np.maximum.accumulate([points[x] for x in xs]).tolist()
        entries.append((float(batch), Curve(xs, ys, INTERPOLATED, last_slope=rise(xs, ys))))
    return entries


def _formula(roofline: Roofline, latent: Latent, heads: int, kv_dtype: str) -> FormulaAttention:
    peak, rate = roofline.peak("bf16"), roofline.rate
    absorbed = 2.0 * heads * (latent.width + latent.kv_rank) / peak
    expanded = 2.0 * heads * (latent.nope_dim + latent.rope_dim + latent.v_dim) / peak
    read = latent.width * dtype_bytes(kv_dtype) / rate
    expansion = 2.0 * heads * (latent.nope_dim + latent.v_dim) * latent.kv_rank / rate  # in 2 bytes, read in every call
    return FormulaAttention(2 * roofline.launch_ns + expansion, max(read, absorbed), expanded)
