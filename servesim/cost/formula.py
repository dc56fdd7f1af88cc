"""Costs that have no table entry: roofline and memory-bound formulas, labeled as formula in `Price.shares`."""

from __future__ import annotations

from dataclasses import dataclass

from servesim.cost.curve import ROOFLINE, Curve
from servesim.hardware.gpu import Gpu
from servesim.hardware.layers import DTYPE_BYTES

BANDWIDTH_EFFICIENCY = 0.8
"""Share of the data-sheet bandwidth that a memory-bound kernel reaches (aiconfigurator-core's value)."""
COMPUTE_EFFICIENCY = 0.6
"""Share of the data-sheet FLOP/s that a large GEMM reaches, from measured L40S prefill steps of an 8B model. (On GPUs
that have a table, GEMMs reach more: median 0.80 on H100, 0.78 on H200, 0.90 on A100 at 4096 tokens.)"""
LAUNCH_NS = 3000.0
"""Fixed time of a memory-bound kernel inside a CUDA graph (aiconfigurator-core's value)."""
LINK_LATENCY_NS = 10000.0
"""Constant part of a collective over PCIe or an unmeasured link (aiconfigurator-core's value for point-to-point
transfers)."""

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
    "mxfp4_mxfp8": "fp8",
    "nvfp4": "fp4",
    "nf4": "bf16",
    "int3": "bf16",
    "ternary": "bf16",
}
"""Arithmetic format for each weight format; int8_wo and formats of 4 bits or less are weight-only and computed in
bf16."""
WEIGHT_BYTES = {dtype: DTYPE_BYTES[dtype] for dtype in COMPUTE_DTYPE}
ACTIVATION_BYTES = {
    dtype: DTYPE_BYTES["nvfp4" if arithmetic == "fp4" else arithmetic] for dtype, arithmetic in COMPUTE_DTYPE.items()
}


def format_on(gpu: Gpu, dtype: str) -> str:
    """Return the format that kernels for weights of `dtype` are priced as on a GPU.

    Without fp8 arithmetic, FP8 weights are weight-only on tensor cores from Ampere on, which compute in bf16 and int8:
    one byte is read per weight and the arithmetic is bf16's, as with int8_wo (Marlin's kernel in vLLM: `use_marlin` in
    vllm/model_executor/layers/quantization/fp8.py, for capabilities 8.0 to 8.8).
    """
    if COMPUTE_DTYPE.get(dtype) == "fp8" and "fp8" not in gpu.flops and {"bf16", "int8"} <= gpu.flops.keys():
        return "int8_wo"
    return dtype


@dataclass(frozen=True, slots=True)
class Roofline:
    """Kernel times by formula in nanoseconds, at the fractions of the data-sheet rates that kernels typically reach, or
    at given fractions."""

    gpu: Gpu
    bandwidth_share: float = BANDWIDTH_EFFICIENCY
    compute_share: float = COMPUTE_EFFICIENCY
    launch_ns: float = LAUNCH_NS
    link_latency_ns: float = LINK_LATENCY_NS
    textbook: bool = False
    """Whether memory traffic is counted as in back-of-the-envelope calculations: every weight once per step, including
    the input embedding (although a step looks up only a few rows of it), and keys and values, but no activations."""

    @classmethod
    def ideal(cls, gpu: Gpu) -> Roofline:
        """Return the ideal roofline of the data sheet: full rates, with no cost for launches and activations."""
        return cls(gpu, 1.0, 1.0, 0.0, 0.0, True)

    @property
    def rate(self) -> float:
        """Bytes per nanosecond."""
        return self.gpu.bandwidth * self.bandwidth_share / 1e9

    @property
    def link_rate(self) -> float:
        """Bytes per nanosecond between GPUs, one direction."""
        return self.gpu.link_bandwidth * self.bandwidth_share / 1e9

    def peak(self, dtype: str) -> float:
        """Return the peak floating-point operations per nanosecond with weights in `dtype`."""
        return self.gpu.flops[COMPUTE_DTYPE[dtype]] * self.compute_share / 1e9

    def gemm(self, m: float, n: int, k: int, dtype: str) -> float:
        """Return the time of [m, k] x [k, n] at the data sheet's rates: the larger of the arithmetic time and the time
        to read weights and inputs and write outputs."""
        flops = 2.0 * m * n * k
        data = n * k * WEIGHT_BYTES[dtype] + m * moved_bytes(n, k, dtype)
        return max(flops / self.gpu.flops[COMPUTE_DTYPE[dtype]], data / self.gpu.bandwidth) * 1e9

    def gemm_curve(self, n: int, k: int, dtype: str) -> Curve:
        """Return the time of a GEMM as a function of its tokens."""
        per_token = 0.0 if self.textbook else moved_bytes(n, k, dtype) / self.rate
        return max_of_lines(
            (self.launch_ns + n * k * WEIGHT_BYTES[dtype] / self.rate, per_token),
            (self.launch_ns, 2.0 * n * k / self.peak(dtype)),
        )

    def memory_op(self, bytes_per_token: float, constant_bytes: float = 0.0) -> Curve:
        """Return the time of a memory-bound kernel (norm, activation, rotary embedding, lookup, sampling) as a function
        of its tokens."""
        per_token = 0.0 if self.textbook else bytes_per_token / self.rate
        return line(self.launch_ns + constant_bytes / self.rate, per_token)

    def collective(self, bytes_per_token: float) -> Curve:
        """Return the time of a collective that sends `bytes_per_token` from each GPU, as a function of its tokens."""
        return line(self.link_latency_ns, bytes_per_token / self.link_rate)

    def copy_ns(self, size: int) -> float:
        """Return the time to copy `size` bytes to or from pinned host memory."""
        return size * 1e9 / (self.gpu.pcie_bandwidth * self.bandwidth_share)

    def move_ns(self, size: int) -> float:
        """Return the time to copy `size` bytes within the GPU's memory, where they are both read and written."""
        return 2 * size / self.rate


def moved_bytes(n: int, k: int, dtype: str) -> float:
    """Return the bytes of a GEMM's inputs and outputs per token; an output element takes 2 bytes (4 in fp32)."""
    return k * ACTIVATION_BYTES[dtype] + n * max(2.0, ACTIVATION_BYTES[dtype])


def line(constant: float, slope: float) -> Curve:
    """Return constant + slope * x, labeled as formula."""
    return Curve([0.0], [constant], ROOFLINE, last_slope=slope, beyond=ROOFLINE)


def max_of_lines(a: tuple[float, float], b: tuple[float, float]) -> Curve:
    """Return the larger of two lines (constant, slope), labeled as formula."""
    flat, steep = sorted((a, b), key=lambda p: p[1])
    if steep[0] >= flat[0] or steep[1] == flat[1]:
        return line(max(flat[0], steep[0]), steep[1])
    cross = (flat[0] - steep[0]) / (steep[1] - flat[1])
    top = flat[0] + cross * flat[1]
    return Curve([0.0, cross], [flat[0], top], ROOFLINE, last_slope=steep[1], beyond=ROOFLINE)
