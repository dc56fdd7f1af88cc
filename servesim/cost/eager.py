"""Unfused attention: the textbook algorithm, as in PyTorch without a fused kernel.

Scores and probabilities of every head are written to memory and read again (FlashAttention, arXiv 2205.14135, algorithm
0), including those above the diagonal. That is twice the pairs of a prompt without cached tokens, and the factor is
applied to every prefill chunk. Decode reads keys and values as the fused kernel does, also moves a row of scores and
probabilities per head, and launches three kernels instead of one.
"""

from __future__ import annotations

from servesim.cost.attention import Attention, Cached, Excess, FormulaAttention
from servesim.cost.curve import Curve
from servesim.cost.curves import total
from servesim.cost.formula import Roofline
from servesim.cost.grid import HeadShape


class EagerAttention:
    """A fused attention split into separate kernels."""

    cached: Cached | None = None
    mixed: Excess | None = None

    def __init__(self, fused: Attention, roofline: Roofline, shape: HeadShape, dtype: str = "bf16") -> None:
        """Split attention into separate kernels; `dtype` is the precision of the scores, fp32 or 16 bits."""
        size = 4.0 if dtype == "fp32" else 2.0
        product = max(2.0 * shape.head_dim / roofline.peak(dtype), size / roofline.rate)
        pair = shape.heads * (2 * product + 2 * size / roofline.rate)
        self._fused = fused
        self._scores = FormulaAttention(
            2 * roofline.launch_ns, 4 * shape.heads * size / roofline.rate, 0.0, fused.window
        )
        self._whole = FormulaAttention(3 * roofline.launch_ns, 0.0, 2 * pair)
        self.floor, self.window, self.skew = self._whole.floor, fused.window, fused.skew

    def decode(self, count: int) -> Curve:
        return total([self._fused.decode(count), self._scores.decode(count)])

    def prefill(self, count: int) -> Curve:
        return self._whole.prefill(count)

    def prefill_at(self, count: float, each: float) -> tuple[float, int]:
        return self._whole.prefill_at(count, each)
