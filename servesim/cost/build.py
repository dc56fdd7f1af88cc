"""From a model, a GPU and a tensor-parallel degree to a cost model: the layer graph."""

from __future__ import annotations

from pathlib import Path

from servesim.cost.attention import Attention, TableAttention, roofline_attention
from servesim.cost.curve import Curve
from servesim.cost.formula import COMPUTE_DTYPE, Roofline
from servesim.cost.grid import HeadShape
from servesim.cost.host import HostTerms
from servesim.cost.linear import GemmTables, collective_curve
from servesim.cost.model import TableCostModel
from servesim.cost.streamed import StreamedDecode
from servesim.cost.tables import KernelTables
from servesim.errors import UserError, suggest
from servesim.hardware.gpu import Gpu
from servesim.hardware.model import ModelSpec, check_tp, dtype_bytes, kv_heads_per_gpu

_SAMPLER_BYTES_PER_LOGIT = 14.0
"""Read in 2 bytes, written and read in float32 by softmax, read once more by the draw."""

ROOFLINE_ONLY = "roofline"
"""In place of tables: none."""


def build_cost_model(
    model: ModelSpec,
    gpu: Gpu,
    tp: int = 1,
    dtype: str = "bf16",
    *,
    kv_dtype: str = "bf16",
    tables: str | Path | None = None,
    host: HostTerms | None = None,
) -> TableCostModel:
    """The cost model of `model` on `tp` GPUs of a kind.

    `dtype` is that of the linear layers (the LM head stays in 16 bits, as in vLLM), `kv_dtype` that of the KV
    cache. `tables` is a folder of kernel tables measured on `gpu`, instead of the shipped ones, or "roofline": no
    tables, everything by formula from the GPU's data sheet. What the tables lack is priced by formula and shows in
    `Price.shares`. `host` is what the engine adds to its kernels; None: nothing.
    """
    _check(model, gpu, tp, dtype, kv_dtype)
    roofline = Roofline(gpu)
    shape = HeadShape(model.num_heads // tp, kv_heads_per_gpu(model, tp), model.head_dim)
    kernels, measured_on = None, gpu
    if tables == ROOFLINE_ONLY:
        pass
    elif tables is not None:
        kernels = KernelTables.load(folder=tables)
    elif gpu.tables is not None:
        kernels, measured_on = KernelTables.load(gpu.tables), Gpu.load(gpu.tables)
    attention: Attention
    if kernels is not None and kernels.rows("attention_decode", "bf16" if kv_dtype == "fp16" else kv_dtype):
        slowdown = measured_on.bandwidth / gpu.bandwidth
        attention = TableAttention(kernels, shape, kv_dtype, slowdown)
    else:
        attention = roofline_attention(gpu, shape, dtype_bytes(kv_dtype))
    if host is not None and host.kv_bandwidth_share:
        kv_bytes = 2.0 * shape.kv_heads * shape.head_dim * dtype_bytes(kv_dtype)
        attention = StreamedDecode(attention, kv_bytes * 1e9 / (gpu.bandwidth * host.kv_bandwidth_share))
    gemms = GemmTables(kernels, roofline, Roofline(measured_on), host is not None and host.monotone_gemms)
    return TableCostModel(
        _per_token(model, shape, tp, dtype, gemms, kernels, roofline),
        _per_sample(model, tp, gemms, kernels, roofline),
        attention,
        model.num_layers,
        roofline,
        f"{model.name} on {tp} x {gpu.name}, {dtype} weights, {kv_dtype} KV",
        host,
    )


def _per_token(
    model: ModelSpec,
    shape: HeadShape,
    tp: int,
    dtype: str,
    gemms: GemmTables,
    kernels: KernelTables | None,
    roofline: Roofline,
) -> list[Curve]:
    """Operators over the tokens of the step. Activations are 2 bytes; the compiled graph fuses the residual
    addition into the norm, and QK-norm into the rotary embedding."""
    hidden, inter = model.hidden_size, model.intermediate_size // tp
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    up = 2 * inter if model.gated_mlp else inter
    add_norm = roofline.memory_op(8.0 * hidden)
    layer = [
        add_norm,
        gemms.curve(q + 2 * kv, hidden, dtype),
        roofline.memory_op(8.0 * kv),  # keys and values into the cache
        gemms.curve(hidden, q, dtype),
        add_norm,
        gemms.curve(up, hidden, dtype),
        roofline.memory_op(2.0 * (up + inter)),
        gemms.curve(hidden, inter, dtype),
    ]
    if not model.learned_positions:
        layer.append(roofline.memory_op(4.0 * (q + kv)))  # rotary embedding
    once = [roofline.memory_op(4.0 * hidden), add_norm]  # embedding lookup, final norm
    if tp > 1:
        all_reduce = collective_curve(kernels, roofline, "all_reduce", tp, 2 * hidden)
        layer += [all_reduce, all_reduce]
        once.append(all_reduce)  # of the vocabulary-parallel embedding
    return [curve.scaled(float(model.num_layers)) for curve in layer] + once


def _per_sample(
    model: ModelSpec, tp: int, gemms: GemmTables, kernels: KernelTables | None, roofline: Roofline
) -> list[Curve]:
    """Operators over the sequences that sample: LM head, gathering its shards, sampler."""
    curves = [
        gemms.curve(model.vocab_size // tp, model.hidden_size, "bf16"),
        roofline.memory_op(_SAMPLER_BYTES_PER_LOGIT * model.vocab_size),
    ]
    if tp > 1:
        curves.append(collective_curve(kernels, roofline, "all_gather", tp, 2 * model.vocab_size))
    return curves


def _check(model: ModelSpec, gpu: Gpu, tp: int, dtype: str, kv_dtype: str) -> None:
    check_tp(model, tp)
    if dtype not in COMPUTE_DTYPE:
        raise UserError(f"unknown dtype {dtype!r}{suggest(dtype, COMPUTE_DTYPE)}")
    if COMPUTE_DTYPE[dtype] not in gpu.flops:
        raise UserError(f"{gpu.name} has no {dtype} arithmetic (choose from: {', '.join(sorted(gpu.flops))})")
    if kv_dtype not in ("bf16", "fp16", "fp8"):
        raise UserError(f"unknown kv_dtype {kv_dtype!r}{suggest(kv_dtype, ['bf16', 'fp16', 'fp8'])}")
