"""Times of the experts of one layer over the tokens of a step.

**Routing assumed.** Measured kernels were run with experts loaded by a power law of exponent 1.2, which is the
assumption here wherever a table has the shape. The formula takes every token to pick its experts uniformly and
independently of the others, so T tokens touch E * (1 - (1 - k/E)^T) of E experts: each touched expert's weights
are read once, whatever the number of tokens. Experts are split over tensor-parallel GPUs by width; expert
parallelism is not modelled.
"""

from __future__ import annotations

from servesim.cost.curve import EXTRAPOLATED, ROOFLINE, Curve
from servesim.cost.formula import (
    ACTIVATION_BYTES,
    BANDWIDTH_EFFICIENCY,
    COMPUTE_DTYPE,
    COMPUTE_EFFICIENCY,
    LAUNCH_NS,
    WEIGHT_BYTES,
    Roofline,
)
from servesim.cost.linear import GemmTables
from servesim.hardware.layers import Experts

_TOKENS = [2**i for i in range(18)]
"""Knots of the formula."""


def experts_curve(gemms: GemmTables, experts: Experts, hidden: int, tp: int, dtype: str) -> Curve:
    """Routing to sum of the routed experts of one layer on one of `tp` GPUs, over tokens."""
    formula = [experts_ns(gemms.roofline, experts, hidden, tp, dtype, t) for t in _TOKENS]
    dtypes = ["bf16" if dtype == "fp16" else dtype, *(["fp8_block"] if dtype == "fp8" else [])]
    measured = [points for name in dtypes if (points := _points(gemms, experts, hidden, tp, name))]
    if measured:
        # engines choose among their kernels: some for one scale per tensor are slower than those for blocks
        tokens, times = min(measured, key=lambda points: sum(points[1]) / len(points[1]))
        if gemms.roofline == gemms.measured_on:
            return Curve(tokens, times)
        # another GPU of the kind: the share of the roofline reached is carried over
        for i, t in enumerate(tokens):
            times[i] *= experts_ns(gemms.roofline, experts, hidden, tp, dtype, t)
            times[i] /= experts_ns(gemms.measured_on, experts, hidden, tp, dtype, t)
        return Curve(tokens, times, EXTRAPOLATED)
    return Curve(_TOKENS, formula, ROOFLINE, beyond=ROOFLINE)


def _points(
    gemms: GemmTables, experts: Experts, hidden: int, tp: int, dtype: str
) -> tuple[list[int], list[float]] | None:
    """Measured tokens and nanoseconds of these experts; None where they were not measured."""
    rows = gemms.tables.rows("moe", dtype) if gemms.tables else {}
    if not rows:
        return None
    mask = (rows["k"] == hidden) & (rows["n"] == experts.size // tp)
    mask &= (rows["experts"] == experts.count) & (rows["topk"] == experts.per_token)
    return (rows["m"][mask].tolist(), (rows["time_us"][mask] * 1e3).tolist()) if mask.any() else None


def experts_ns(roofline: Roofline, experts: Experts, hidden: int, tp: int, dtype: str, tokens: int) -> float:
    """Two grouped GEMMs by formula: the larger of reading the weights touched and activations, and arithmetic."""
    width = experts.size / tp
    routed = tokens * experts.per_token
    weights = experts.touched(tokens) * 3 * hidden * width * WEIGHT_BYTES[dtype]
    activations = routed * (hidden + width) * ACTIVATION_BYTES[dtype] + routed * (2 * width + hidden) * 2.0
    reading = (weights + activations) / (roofline.gpu.bandwidth * BANDWIDTH_EFFICIENCY)
    computing = 6.0 * routed * hidden * width / (roofline.gpu.flops[COMPUTE_DTYPE[dtype]] * COMPUTE_EFFICIENCY)
    return 2 * LAUNCH_NS + max(reading, computing) * 1e9
