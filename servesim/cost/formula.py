"""Costs of what no table holds: roofline and memory-bound formulas, labelled so in `Price.shares`."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.cost.curve import ROOFLINE, Curve
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import DTYPE_BYTES

BANDWIDTH_EFFICIENCY = 0.8
"""Share of the data-sheet bandwidth a memory-bound kernel reaches (aiconfigurator-core's value)."""
COMPUTE_EFFICIENCY = 0.6
"""Share of the data-sheet FLOP/s a large GEMM reaches: what measured L40S prefill steps of an 8B model show.
(The tables of GPUs that have one reach more: median 0.80 on H100, 0.78 on H200, 0.90 on A100 at 4096
tokens.)"""
LAUNCH_NS = 3000.0
"""Constant part of a memory-bound kernel inside a CUDA graph (aiconfigurator-core's value)."""
LINK_LATENCY_NS = 10000.0
"""Constant part of a collective over PCIe or an unmeasured link (aiconfigurator-core's point-to-point
value)."""

COMPUTE_DTYPE = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int8": "int8",
    "int8_wo": "bf16",
    "int4": "bf16",
    "mxfp4": "bf16",
}
"""The arithmetic a weight format runs in: int8_wo, int4 and mxfp4 are weight-only, computed in bf16."""
WEIGHT_BYTES = {dtype: DTYPE_BYTES[dtype] for dtype in COMPUTE_DTYPE}
ACTIVATION_BYTES = {dtype: DTYPE_BYTES[arithmetic] for dtype, arithmetic in COMPUTE_DTYPE.items()}


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a kernel on a GPU, nanoseconds."""

    gpu: Gpu

    def gemm(self, m: float, n: int, k: int, dtype: str) -> float:
        """[m, k] x [k, n]: the larger of arithmetic and of reading weights and inputs and writing outputs."""
        flops = 2.0 * m * n * k
        data = n * k * WEIGHT_BYTES[dtype] + m * k * ACTIVATION_BYTES[dtype] + 2.0 * m * n
        return max(flops / self.gpu.flops[COMPUTE_DTYPE[dtype]], data / self.gpu.bandwidth) * 1e9

    def gemm_curve(self, n: int, k: int, dtype: str) -> Curve:
        """A GEMM over tokens at the assumed efficiencies."""
        peak = self.gpu.flops[COMPUTE_DTYPE[dtype]] * COMPUTE_EFFICIENCY / 1e9
        rate = self.gpu.bandwidth * BANDWIDTH_EFFICIENCY / 1e9
        per_token = (k * ACTIVATION_BYTES[dtype] + 2.0 * n) / rate
        return max_of_lines(
            (LAUNCH_NS + n * k * WEIGHT_BYTES[dtype] / rate, per_token),
            (LAUNCH_NS, 2.0 * n * k / peak),
        )

    def memory_op(self, bytes_per_token: float, constant_bytes: float = 0.0) -> Curve:
        """A memory-bound kernel (norm, activation, rotary embedding, lookup, sampling) over its tokens."""
        rate = self.gpu.bandwidth * BANDWIDTH_EFFICIENCY / 1e9
        return line(LAUNCH_NS + constant_bytes / rate, bytes_per_token / rate)

    def collective(self, bytes_per_token: float) -> Curve:
        """A collective that sends `bytes_per_token` from each GPU, over its tokens."""
        rate = self.gpu.link_bandwidth * BANDWIDTH_EFFICIENCY / 1e9
        return line(LINK_LATENCY_NS, bytes_per_token / rate)

    def copy_ns(self, size: int) -> float:
        """Pinned host copies of `size` bytes."""
        return size * 1e9 / (self.gpu.pcie_bandwidth * BANDWIDTH_EFFICIENCY)

    def move_ns(self, size: int) -> float:
        """Copies of `size` bytes within the GPU's memory: read and written."""
        return 2 * size * 1e9 / (self.gpu.bandwidth * BANDWIDTH_EFFICIENCY)


def line(constant: float, slope: float) -> Curve:
    """constant + slope * x, by formula."""
    return Curve([0.0], [constant], ROOFLINE, last_slope=slope, beyond=ROOFLINE)


def max_of_lines(a: tuple[float, float], b: tuple[float, float]) -> Curve:
    """The larger of two lines (constant, slope), by formula."""
    flat, steep = sorted((a, b), key=lambda p: p[1])
    if steep[0] >= flat[0] or steep[1] == flat[1]:
        return line(max(flat[0], steep[0]), steep[1])
    cross = (flat[0] - steep[0]) / (steep[1] - flat[1])
    top = flat[0] + cross * flat[1]
    return Curve([0.0, cross], [flat[0], top], ROOFLINE, last_slope=steep[1], beyond=ROOFLINE)
