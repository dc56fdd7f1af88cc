"""Times of the experts of one layer over the tokens of a step.

**Routing.** Measured kernels were run with expert loads that follow a power law of exponent 1.2, which is assumed here
if a table has the kernel; Marlin's kernel on unmeasured shapes has its own assumption (`servesim.cost.marlin`). The
formula assumes that every token picks its experts uniformly and independently of the others, so T tokens touch E * (1 -
(1 - k/E)^T) of E experts: each touched expert's weights are read once, whatever the number of tokens.

**Unmeasured shapes** scale the excess of the kernel's nearest measured shape over the floor by the formula, at equal
tokens per expert: `floor + (measured - floor) * formula / formula of the measured shape`, where the floor is the time
of routing, sorting and launches, which do not depend on the width. (With whole families of shapes held out of the H100
and H200 tables, the median error is 5 to 8 %, versus 28 to 86 % for the formula alone.) Marlin's kernel is decomposed
into its blocks of rows.

**Parallelism.** Experts are split over tensor-parallel GPUs by width or, under expert parallelism, distributed whole: a
GPU then has its share of the experts and of the work. Expert parallelism was measured on the most loaded GPU (in
prefill, up to twice the mean load). Shapes not measured under expert parallelism use the same multiple of the mean
share as the nearest shape that was; if none was, the largest share is assumed to equal the mean. Attention stays
tensor-parallel, so every GPU has every token and one all-reduce sums their results, as in vLLM with one data-parallel
rank. With several ranks (`servesim.cost.data_parallel`), tokens are sent to the GPUs of their experts and the results
are sent back, and the tokens counted are those of all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, log
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.cost import marlin
from servesim.cost.curve import EXTRAPOLATED, ROOFLINE, Curve
from servesim.cost.formula import (
    ACTIVATION_BYTES,
    COMPUTE_DTYPE,
    WEIGHT_BYTES,
    Roofline,
)
from servesim.cost.grouped import grouped_curve
from servesim.cost.linear import WEIGHT_ONLY, GemmTables
from servesim.errors import UserError, suggest
from servesim.hardware.layers import Experts

MOE_BACKENDS = ("auto", "triton", "marlin", "mxfp8", "deepgemm", "deepgemm_padded")
"""Choices of vLLM's `--moe-backend`: Marlin's kernel for 4-bit weights and bf16 arithmetic; mxfp8, FlashInfer's kernel
on Blackwell for mxfp4 weights and mxfp8 activations; DeepGEMM's kernel for block-scaled FP8 weights, padded if it also
computes blocks without a token (`servesim.cost.grouped`). The other two are the table's fastest kernel for the weights
and bf16 activations, which for mxfp4 on Hopper is the Triton kernel."""
_MARLIN = "mxfp4_marlin"
"""Name of the rows for Marlin's kernel with mxfp4 weights in tables whose `mxfp4` rows were measured with another
kernel."""
_MARLINS = (_MARLIN, "int4")
"""Names of Marlin's rows; the tables' rows for int4 experts are also Marlin's."""
_TOKENS = [2**i for i in range(18)]
"""Numbers of tokens at which the formula has knots."""


class ExpertShape(NamedTuple):
    """The experts of a layer on one GPU."""

    size: int
    hidden: int
    experts: int
    per_token: int

    @property
    def layer(self) -> Experts:
        """Layer that the experts belong to."""
        return Experts(self.experts, self.per_token, self.size)


class _Measured(NamedTuple):
    """Measurements of one shape: its kernel, tokens, nanoseconds."""

    kernel: str
    shape: ExpertShape
    tokens: list[int]
    times: list[float]


def experts_curve(
    gemms: GemmTables,
    experts: Experts,
    hidden: int,
    tp: int,
    dtype: str,
    backend: str = "auto",
    ep: int = 1,
    load: float | None = None,
) -> Curve:
    """Return the time of the routed experts of one layer, from routing to their sum, on one of `tp` GPUs, as a function
    of the tokens of all `tp` GPUs. Whole experts are distributed over `ep` of the GPUs and split by width over the
    rest. `backend`: see `MOE_BACKENDS`; a backend that does not support the weight format has no effect. Under expert
    parallelism, the times are those of the most loaded GPU if it was measured, or of a GPU with `load` times the mean
    load if `load` is set."""
    grouped = backend in ("deepgemm", "deepgemm_padded") and dtype == "fp8_block"
    if grouped:
        curve = grouped_curve(gemms, experts, hidden, tp, ep, backend == "deepgemm_padded")
    else:
        curve = _mean_curve(gemms, experts, hidden, tp, dtype, backend, ep)
    if load is not None and ep > 1:
        return _loaded(curve, load)
    if ep == 1 or grouped:
        return curve
    shape = ExpertShape(experts.size // (tp // ep), hidden, experts.count, experts.per_token)
    dealt, found = _dealt(gemms, _kernels(dtype, backend), ep)
    if not found:
        return curve
    near = _nearest(found, shape)
    if near.shape == shape and dealt == ep and _same_bytes(near.kernel, dtype) and gemms.roofline == gemms.measured_on:
        return Curve(near.tokens, near.times)
    there = replace(experts, count=near.shape.experts, per_token=near.shape.per_token, size=near.shape.size)
    alike = "marlin" if near.kernel == _MARLIN else backend
    measured = replace(gemms, roofline=gemms.measured_on)
    mean = _mean_curve(measured, there, near.shape.hidden, dealt, _weights(near.kernel), alike, dealt)
    beyond = [ns / mean.at(m) for m, ns in zip(near.tokens, near.times, strict=True)]
    return Curve(near.tokens, [curve.at(m) * r for m, r in zip(near.tokens, beyond, strict=True)], EXTRAPOLATED)


def family_measured(gemms: GemmTables, experts: Experts, hidden: int, dtype: str) -> bool:
    """Return whether experts of any width, but with the same hidden size, count and number per token, were measured in
    a kernel for `dtype`."""
    alike = (hidden, experts.count, experts.per_token)
    return any(known.shape[1:] == alike for known in _rows(gemms, dtype))


def _mean_curve(
    gemms: GemmTables,
    experts: Experts,
    hidden: int,
    tp: int,
    dtype: str,
    backend: str,
    ep: int,
) -> Curve:
    """Return the time of `experts_curve` if every GPU has the mean share of the experts and of their work."""
    if backend not in MOE_BACKENDS:
        raise UserError(f"unknown moe_backend {backend!r}{suggest(backend, MOE_BACKENDS)}")
    share = 1.0 / ep
    shape = ExpertShape(experts.size // (tp // ep), hidden, experts.count, experts.per_token)
    dtype = "bf16" if dtype == "fp16" else dtype
    kinds = _kernels(dtype, backend)
    groups = [[known for kernel in kernels for known in _rows(gemms, kernel)] for kernels in kinds]
    marlins = any(known.kernel in (*_MARLINS, dtype) for group in groups for known in group)
    if dtype in WEIGHT_ONLY and gemms.weight_only_flops < inf and not marlins:
        return _unmeasured_blocks(gemms, shape, dtype, share)
    curve = _shape_curve(gemms, shape, dtype, groups, share)
    return gemms.limited(curve, experts_work(shape, dtype, 1.0, share)[0], dtype)


def _shape_curve(
    gemms: GemmTables, shape: ExpertShape, dtype: str, groups: list[list[_Measured]], share: float
) -> Curve:
    if found := next(filter(None, groups), []):
        near = _nearest(found, shape)
        known = near.shape == shape and _same_bytes(near.kernel, dtype)
        if known and share == 1.0 and gemms.roofline == gemms.measured_on:
            return Curve(near.tokens, near.times)
        alike = [known for group in groups for known in group]
        if near.kernel in _MARLINS and (by_blocks := _by_blocks(gemms, near, alike, shape, dtype, share)):
            return by_blocks
        return _transferred(gemms, near, found, shape, dtype, share)
    times = [experts_ns(gemms.roofline, shape, dtype, t, share) for t in _TOKENS]
    return Curve(_TOKENS, times, ROOFLINE, beyond=ROOFLINE)


def _dealt(gemms: GemmTables, groups: list[list[str]], ep: int) -> tuple[int, list[_Measured]]:
    """Return the largest measured number of GPUs, at most `ep`, that experts were distributed over, and its
    measurements."""
    for kernels in groups:
        for gpus in (2**i for i in range(ep.bit_length() - 1, 0, -1)):
            if found := [known for kernel in kernels for known in _rows(gemms, kernel, gpus)]:
                return gpus, found
    return ep, []


def _loaded(curve: Curve, load: float) -> Curve:
    """Return the curve of a GPU with `load` times the mean load: it computes as if it had that many times as many
    tokens."""
    tokens = [float(m) for m in curve.xs]
    return Curve(tokens, [curve.at(m * load) for m in tokens], EXTRAPOLATED, beyond=max(curve.knot_source))


def experts_ns(roofline: Roofline, shape: ExpertShape, dtype: str, tokens: float, share: float = 1.0) -> float:
    """Return the formula time of two grouped GEMMs of `share` of the experts: the larger of the arithmetic time and the
    time to read the touched weights and the activations."""
    return 2 * roofline.launch_ns + _work_ns(roofline, shape, dtype, tokens, share)


def experts_work(shape: ExpertShape, dtype: str, tokens: float, share: float = 1.0) -> tuple[float, float, float]:
    """Return FLOPs, bytes of the touched weights, and bytes of activations of the two grouped GEMMs of `share` of the
    experts."""
    width, hidden = shape.size, shape.hidden
    routed = tokens * shape.per_token * share
    touched = share * Experts(shape.experts, shape.per_token, width).touched(tokens)
    weights = touched * 3 * hidden * width * WEIGHT_BYTES[dtype]
    activations = routed * (hidden + width) * ACTIVATION_BYTES[dtype] + routed * (2 * width + hidden) * 2.0
    return 6.0 * routed * hidden * width, weights, activations


def _work_ns(roofline: Roofline, shape: ExpertShape, dtype: str, tokens: float, share: float) -> float:
    flops, weights, activations = experts_work(shape, dtype, tokens, share)
    reading = weights + (0.0 if roofline.textbook else activations)
    return max(reading / roofline.rate, flops / roofline.peak(dtype))


def _transferred(
    gemms: GemmTables, near: _Measured, found: list[_Measured], shape: ExpertShape, dtype: str, share: float
) -> Curve:
    """Return the curve of `shape` scaled from that of the shape `near`."""
    there = gemms.measured_on

    def work(known: _Measured, tokens: float) -> float:
        return _work_ns(there, known.shape, _weights(known.kernel), tokens, 1.0)

    family = [known for known in found if known.kernel == near.kernel and known.shape[1:] == near.shape[1:]]
    floor = max(0.0, min(known.times[0] - work(known, known.tokens[0]) for known in family))
    beyond = [max(t - floor, 0.0) / work(near, m) for m, t in zip(near.tokens, near.times, strict=True)]
    # the same number of tokens per expert for both shapes
    there_per_here = shape.per_token / shape.experts * near.shape.experts / near.shape.per_token
    ratios = np.interp([log(m * there_per_here) for m in near.tokens], [log(m) for m in near.tokens], beyond)
    times = [
        floor + ratio * _work_ns(gemms.roofline, shape, dtype, m, share)
        for m, ratio in zip(near.tokens, ratios.tolist(), strict=True)
    ]
    return Curve(near.tokens, times, EXTRAPOLATED)


def _by_blocks(
    gemms: GemmTables, near: _Measured, found: list[_Measured], shape: ExpertShape, dtype: str, share: float
) -> Curve | None:
    """Return the curve of `shape` in Marlin's kernel, built from the blocks of the shape `near`. The floor, which grows
    with the number of experts, comes from the shapes with the nearest number of experts. Return None if too little was
    measured."""
    blocks = marlin.fit(near.tokens, near.times, near.shape.layer)
    if blocks is None:
        return None
    there, here, layer = near.shape, shape, shape.layer
    if near.kernel == _MARLIN:
        there, here = _padded(there), _padded(here)
    size = here.size * here.hidden / (there.size * there.hidden)
    floor = _floor(found, shape.experts)
    tokens = sorted({*near.tokens, *(last + i for last in marlin.last_tokens(layer, share) for i in (0, 1))})
    times = []
    for m in tokens:
        work = [_work_ns(gpu, here, dtype, m, 1.0) for gpu in (gemms.roofline, gemms.measured_on)]
        times.append(floor + marlin.step_ns(blocks, m, layer, share) * size * work[0] / work[1])
    return Curve(tokens, times, EXTRAPOLATED)


def _unmeasured_blocks(gemms: GemmTables, shape: ExpertShape, dtype: str, share: float) -> Curve:
    """Return the curve of `shape` in Marlin's kernel on a GPU without rows of it, from the rate that the kernel reaches
    in dense layers, or the GPU's if that is lower."""
    here = _padded(shape) if dtype == "mxfp4" else shape
    peak = gemms.roofline.gpu.flops[COMPUTE_DTYPE[dtype]]
    flops = min(gemms.weight_only_flops, peak)
    blocks = marlin.unmeasured(here.hidden, here.size, WEIGHT_BYTES[dtype], gemms.roofline.rate, flops)
    changes = (last + i for last in marlin.last_tokens(shape.layer, share) for i in (0, 1))
    tokens = sorted({*_TOKENS, *changes})
    times = [blocks.floor + marlin.step_ns(blocks, m, shape.layer, share) for m in tokens]
    return Curve(tokens, times, ROOFLINE, beyond=ROOFLINE)


def _floor(found: list[_Measured], experts: int) -> float:
    """Return the nanoseconds that Marlin's kernel spends outside its blocks."""
    alike = [known for known in found if known.kernel in _MARLINS]
    fits = [(k.shape.experts, fit.floor) for k in alike if (fit := marlin.fit(k.tokens, k.times, k.shape.layer))]
    nearest = min((count for count, _ in fits), key=lambda count: abs(log(count / experts)))
    return median(floor for count, floor in fits if count == nearest)


def _kernels(dtype: str, backend: str) -> list[list[str]]:
    """Return the groups of kernels in a table that run experts in `dtype`, or serve as a proxy for such a kernel; the
    first group that was measured is used."""
    if dtype == "mxfp4" and backend == "mxfp8":
        return [["mxfp4_mxfp8"], ["mxfp4", _MARLIN]]
    if dtype == "mxfp4":
        return [[_MARLIN], ["int4"]] if backend == "marlin" else [["mxfp4", _MARLIN]]
    if dtype == "fp8_block":  # block scales do not work in a kernel that uses one scale per tensor
        return [["fp8_block"], ["fp8"]]
    if (
        dtype == "int8_wo"
    ):  # the same arithmetic as bf16 weights, at the share of the roofline that their kernel reaches
        return [["int8_wo"], ["bf16"]]
    return [["fp8", "fp8_block"]] if dtype == "fp8" else [[dtype]]


def _nearest(found: list[_Measured], shape: ExpertShape) -> _Measured:
    """Return the measured shape nearest to `shape`, with the fastest of several kernels measured for it. A kernel is
    passed over in favor of one that is faster at the nearest shape at which both were measured (some kernels with one
    scale per tensor take 2 to 5 times as long as those with block scales, and were measured for more shapes)."""
    near = min(found, key=lambda known: (_distance(known.shape, shape), _mean(known)))
    if near.shape == shape:
        return near
    best = near
    for kernel in sorted({known.kernel for known in found} - {near.kernel}):
        mine, other = ({k.shape: k for k in found if k.kernel == name} for name in (near.kernel, kernel))
        if both := mine.keys() & other.keys():
            common = min(sorted(both), key=lambda at: _distance(at, shape))
            if _mean(other[common]) < _mean(mine[common]):
                best = min(other.values(), key=lambda known: _distance(known.shape, shape))
    return best


def _mean(known: _Measured) -> float:
    return sum(known.times) / len(known.times)


def _weights(kernel: str) -> str:
    return "mxfp4" if kernel == _MARLIN else kernel


def _same_bytes(kernel: str, dtype: str) -> bool:
    return WEIGHT_BYTES[_weights(kernel)] == WEIGHT_BYTES[dtype]


def _padded(shape: ExpertShape) -> ExpertShape:
    """Pad mxfp4 experts as vLLM does for Marlin: width to 128, hidden to 256 (fused_moe/oracle/mxfp4.py)."""
    return shape._replace(size=-(-shape.size // 128) * 128, hidden=-(-shape.hidden // 256) * 256)


def _distance(a: ExpertShape, b: ExpertShape) -> float:
    return sum(log(x / y) ** 2 for x, y in zip(a, b, strict=True))


def _rows(gemms: GemmTables, kernel: str, dealt: int = 1) -> list[_Measured]:
    """Return every shape measured with a kernel, with its experts distributed over `dealt` GPUs."""
    rows: dict[str, NDArray[Any]] = gemms.tables.rows("moe" if dealt == 1 else "moe_ep", kernel) if gemms.tables else {}
    if not rows:
        return []
    if dealt > 1:
        rows = {name: column[rows["gpus"] == dealt] for name, column in rows.items()}
    columns = [rows[name].tolist() for name in ("n", "k", "experts", "topk", "m")]
    curves: dict[ExpertShape, list[tuple[int, float]]] = {}
    for n, k, count, per_token, m, us in zip(*columns, rows["time_us"].tolist(), strict=True):
        curves.setdefault(ExpertShape(n, k, count, per_token), []).append((m, us * 1e3))
    return [_Measured(kernel, shape, [m for m, _ in c], [ns for _, ns in c]) for shape, c in curves.items()]
