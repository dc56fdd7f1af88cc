"""Times of single calls, looked up in kernel tables the way the cost model does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import Batch
from servesim.cost.attention import TableAttention
from servesim.cost.curve import Curve
from servesim.cost.data_parallel import box_of, deepep_curve
from servesim.cost.formula import Roofline
from servesim.cost.grid import HeadShape
from servesim.cost.latent import DEEPSEEK, Beside, beside_of, latent_attention
from servesim.cost.linear import GemmTables, collective_curve, row_curve
from servesim.cost.moe import experts_curve
from servesim.cost.recurrent import recurrent_attention
from servesim.cost.sparse import projections_of, sparse_attention
from servesim.cost.stage import AttentionLayers, Stage
from servesim.cost.tables import KEY_COLUMNS, KernelTables, Rows
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import Experts
from servesim.hardware.model import ModelSpec
from servesim.hardware.recurrent import GDN, KDA, Recurrent

_Call = dict[str, int]
_EXPERTS = ("moe", "moe_ep")
_EXCHANGES = ("all_to_all_ll", "all_to_all_ht")
_SPARSE = {7168: "deepseek-v3.2", 6144: "glm-5"}
"""Models whose sparse attention was measured, by hidden width."""
_COLLECTIVES = ("all_reduce", "all_reduce_fused", "all_reduce_nccl", "all_gather")


def lookup(tables: KernelTables, gpu: Gpu, op: str, dtype: str, rows: Rows) -> NDArray[np.float64]:
    """Return the times, in nanoseconds, of the calls in `rows` (calls of `op`; their `time_us` is ignored) on the GPU
    of the tables."""
    if op in _EXPERTS:  # times of one kernel; the cost model uses the fastest one
        for name in _EXPERTS:
            for other in tables.dtypes(name):
                tables = tables if other == dtype else tables.with_rows(name, other, {})
    if op == "mla_decode":  # a separately measured kernel takes precedence
        tables = tables.with_rows("mla_kernel_decode", dtype, {})
    gemms = GemmTables(tables, Roofline(gpu), Roofline(gpu))
    names = keys_of(rows)
    calls = [dict(zip(names, key, strict=True)) for key in zip(*(rows[name].tolist() for name in names), strict=True)]
    time = _attention(gemms, op, dtype) if "batch" in names else _curve(gemms, op, dtype)
    return np.array([time(call) for call in calls])


def keys_of(rows: Rows) -> list[str]:
    """Return the columns that identify the measured call."""
    return [name for name in KEY_COLUMNS if name in rows]


def _curve(gemms: GemmTables, op: str, dtype: str) -> Callable[[_Call], float]:
    roofline = gemms.roofline

    @cache
    def curve(**shape: int) -> Curve:
        if op == "gemm":
            return gemms.curve(shape["n"], shape["k"], dtype)
        if op in _EXPERTS:
            experts = Experts(shape["experts"], shape["topk"], shape["n"])
            backend = "marlin" if dtype.endswith("_marlin") else "auto"
            gpus, dtype_ = shape.get("gpus", 1), dtype.removesuffix("_marlin")
            return experts_curve(gemms, experts, shape["k"], gpus, dtype_, backend, gpus)
        if op in _EXCHANGES:
            experts = Experts(shape["experts"], shape["topk"], 1)
            return deepep_curve(gemms, shape["k"], experts, op, shape["gpus"], box_of(gemms.roofline.gpu))
        if op in _COLLECTIVES:
            return collective_curve(gemms.tables, roofline, op, shape["gpus"], 1)
        return row_curve(gemms, op, shape["n"], 4.0 * shape["n"], dtype)

    def time(call: _Call) -> float:
        size = call.pop("bytes" if op in _COLLECTIVES else "m")
        size *= call["gpus"] if op in _EXCHANGES else 1  # the tables count the tokens of one GPU
        return curve(**call).at(size)

    return time


def _attention(gemms: GemmTables, op: str, dtype: str) -> Callable[[_Call], float]:
    """Return a function that prices the attention of one layer as a step."""

    @cache
    def layer(heads: int, kv_heads: int, head_dim: int, window: int, hidden: int) -> tuple[Stage, Beside]:
        tables = gemms.tables
        beside: Beside = _nothing
        assert tables is not None
        if op.startswith("mla"):
            attention = latent_attention(gemms, DEEPSEEK, heads, dtype)
            beside = beside_of(op)(gemms, heads)[op.endswith("prefill")]
        elif op.startswith("dsa"):
            latent = ModelSpec.load(_SPARSE[hidden]).latent
            assert latent is not None
            attention = sparse_attention(gemms, latent, hidden, heads, dtype)
            beside = _taken_off(projections_of(gemms, latent, hidden, heads))
        elif op.startswith((GDN, KDA)):
            recurrent = Recurrent(op.partition("_")[0], kv_heads, heads, head_dim, head_dim, kernel=4)
            attention = recurrent_attention(gemms, recurrent, 1)
        else:
            attention = TableAttention(tables, HeadShape(heads, kv_heads, head_dim), dtype, window=window)
        return Stage([], [], [AttentionLayers(attention, 1)], gemms.roofline), beside

    def time(call: _Call) -> float:
        shape = (call.get(name, 0) for name in ("heads", "kv_heads", "head_dim", "window", "k"))
        stage, beside = layer(*shape)
        batch = _batch(op, call["batch"], call["new_tokens"], call["past_tokens"], call.get("longest"))
        return stage.cost(batch, 0)[0] - beside(batch.linear_tokens)

    return time


def _nothing(tokens: float) -> float:
    return 0.0


def _taken_off(projections: Beside) -> Beside:
    return lambda tokens: -projections(tokens)


def _batch(op: str, count: int, new: int, past: int, longest: int | None) -> Batch:
    """Return a call as a step; a decode attends to the cached tokens and its own token."""
    if op.endswith("prefill"):
        return Batch(count * new, [(new, past)] * count)
    prompt = [(new, 0)] if new and op in ("attention_mixed", "attention_skew") else []
    context, longest = past + 1, (past if longest is None else longest) + 1
    total = count + sum(n for n, _ in prompt)
    return Batch(
        total,
        prompt,
        decode_count=count,
        decode_context_sum=count * context,
        decode_context_sumsq=count * context**2,
        decode_context_max=longest,
    )
