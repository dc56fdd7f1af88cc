"""Times of layers that keep a state, without their projections: convolution and recurrence.

A decode step costs as much as reading and writing the states of its sequences, whatever their contexts. A prompt is
processed in chunks, one after the other within a sequence, and continuing from a state costs nothing extra. Both were
measured for the gated delta rule and for Kimi delta attention, by number of sequences and tokens, at some numbers of
heads; for other numbers of heads, the nearest one's time beyond that of a single token is scaled by the ratio of heads.
Mamba2 is always priced by formula (the recurrence itself is in no table), as are GPUs without such a table.
"""

from __future__ import annotations

from math import log
from typing import Any

from numpy.typing import NDArray

from servesim.cost.attention import FROM_STATE, GridAttention
from servesim.cost.curve import EXTRAPOLATED, MEASURED, ROOFLINE, Curve
from servesim.cost.formula import Roofline
from servesim.cost.grid import Entries, Grid, completed, work
from servesim.cost.linear import GemmTables
from servesim.hardware.recurrent import MAMBA2, Recurrent

CHUNK = 64
"""Number of prompt tokens that a kernel computes together (chunk size of the Triton kernels of both delta rules)."""
CHUNK_NS = 3400.0
"""Time of one chunk of a delta rule, which waits for the previous chunk of its sequence: a prompt of 8,192 tokens by
itself takes 442 us on an H200 with 8 heads (vLLM 0.24). Mamba2 computes the chunks of a sequence in parallel."""
_COUNTS, _TOKENS = tuple(2.0**i for i in range(13)), tuple(2**i for i in range(18))
"""Numbers of sequences and tokens at which the formula has knots."""


def recurrent_attention(gemms: GemmTables, layer: Recurrent, tp: int) -> GridAttention:
    """Return the convolution and recurrence of `layer` on one of `tp` GPUs, as attention over a state."""
    tables = gemms.tables if gemms.roofline == gemms.measured_on else None
    heads = layer.value_heads // tp, layer.key_heads // tp
    grids = []
    for of, formula in zip(("decode", "prefill"), _by_formula(gemms.roofline, layer, tp), strict=True):
        rows = tables.rows(f"{layer.kind}_{of}", "bf16") if tables else {}
        known = rows and layer.key_dim == layer.value_dim == rows["head_dim"][0]
        grids.append(Grid(_measured(rows, heads, of == "decode") if known else formula))
    # a step with both kinds launches separate kernels for each, so they share no fixed cost
    return GridAttention(grids[0], grids[1], 0.0, FROM_STATE)


def _measured(rows: dict[str, NDArray[Any]], heads: tuple[int, int], decode: bool) -> Entries:
    """Return the curves by number of sequences, as functions of the work of each sequence, at the nearest measured
    numbers of (value, key) heads."""
    known = sorted(set(zip(rows["heads"].tolist(), rows["kv_heads"].tolist(), strict=True)))
    near = min(known, key=lambda at: (abs(log(at[0] / heads[0])), abs(log(at[1] / heads[1])), at))
    mine = (rows["heads"] == near[0]) & (rows["kv_heads"] == near[1])
    lines: dict[float, dict[float, float]] = {}
    for batch, new, us in zip(*(rows[c][mine].tolist() for c in ("batch", "new_tokens", "time_us")), strict=True):
        lines.setdefault(float(batch), {})[work(new, 0, FROM_STATE)] = us * 1e3
    source = MEASURED if near == heads else EXTRAPOLATED
    entries = completed(lines, source)
    least, scale = entries[0][1].ys[0], heads[0] / near[0]
    scaled = []
    for count, c in entries:
        ys = [least + (y - least) * scale for y in c.ys]
        if decode:  # one token each, whatever the contexts
            scaled.append((count, Curve([0.0], [ys[0]], source, last_slope=0.0, beyond=source)))
        else:
            scaled.append((count, Curve(c.xs, ys, c.knot_source, last_slope=c.slopes[-1] * scale)))
    return scaled


def _by_formula(roofline: Roofline, layer: Recurrent, tp: int) -> tuple[Entries, Entries]:
    """Return the formula curves of decode and prefill: states read and written once, inputs and outputs of each token,
    and arithmetic in chunks; chunks of a delta rule run one after the other."""
    heads = layer.value_heads // tp
    channels = (2 * layer.key_size + layer.value_size) // tp
    launches, rate = 2 * roofline.launch_ns, roofline.rate
    states = 2.0 * layer.state_bytes(tp) / rate
    moved = (4.0 * channels + 4.0 * heads * layer.value_dim) / rate  # 2 bytes each, read and written
    pairs = 2.0 * CHUNK * (layer.key_dim + layer.value_dim)
    flops = heads * (pairs + 4.0 * layer.key_dim * layer.value_dim)
    each = max(moved, flops / roofline.peak("bf16"))
    chain = 0.0 if layer.kind == MAMBA2 or roofline.textbook else CHUNK_NS / CHUNK
    decode, prefill = [], []
    for count in _COUNTS:
        held = launches + count * states
        decode.append((count, Curve([0.0], [held + count * moved], ROOFLINE, beyond=ROOFLINE)))
        xs = [work(n, 0, FROM_STATE) for n in _TOKENS]
        ys = [max(held + count * n * each, launches + n * chain) for n in _TOKENS]
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        prefill.append((count, Curve(xs, ys, ROOFLINE, last_slope=slope, beyond=ROOFLINE)))
    return decode, prefill
