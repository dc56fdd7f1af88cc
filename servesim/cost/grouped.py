"""FP8 experts in DeepGEMM's grouped kernel, priced by its blocks of rows.

vLLM (vllm/model_executor/layers/fused_moe/deep_gemm_moe.py) sorts the rows of a step by expert into one buffer, in
which each expert's rows start at a multiple of `BLOCK`, and runs two grouped products over it: a block is computed
either whole or not at all, so an expert with one token costs as much as one with 128. The buffer has the worst-case
length, `tokens * per_token + experts * (BLOCK - 1)` rows, since the counts are known only on the GPU. Before 0.13,
blocks without an expert were marked as the first expert's and computed as well (PR 30494), so that a decode step cost
as much as one of 2,048 tokens (128 experts, 8 per token).

**Price.** A group's rows run through the tiles of the dense kernel, so the products are the table's dense ones in FP8
blocks over the same number of rows. Those table rows include the quantization of their inputs, which here applies to
the step's tokens before they are sorted and, as in the table, to every row after the activation. The activation moves 6
bytes per element; sorting and summing move 4 bytes per element of the rows in use. If reading the weights of the
touched experts takes longer than all of this, the step takes that time instead. Nothing is fitted to served steps.
"""

from __future__ import annotations

import numpy as np

from servesim.cost.curve import EXTRAPOLATED, Curve
from servesim.cost.formula import WEIGHT_BYTES
from servesim.cost.linear import GemmTables
from servesim.cost.marlin import beta_binomial
from servesim.hardware.layers import Experts

BLOCK = 128
"""Number of rows in a block (DeepGEMM's get_mk_alignment_for_contiguous_layout)."""
QUANTIZING = 0.0018
"""Nanoseconds to quantize an element: the part of the H100 and H200 tables' times that is independent of the output
width (straight lines fitted over 512 to 8,192 outputs, residuals of 1 %: .0017 to .0021 for 8,192 to 32,768 rows of
1,536 to 7,168 elements)."""
_LAUNCHES = 7
"""Number of kernels besides the products: routing, quantizing, counting, two for sorting, activation, sum."""
_TOKENS = [2**i for i in range(18)]


def grouped_curve(gemms: GemmTables, experts: Experts, hidden: int, tp: int, ep: int, every_block: bool) -> Curve:
    """Return the time of a layer's experts, from routing to their sum, on one of `tp` GPUs, as a function of tokens.
    Whole experts are distributed over `ep` of the GPUs and split by width over the rest.

    `every_block`: also compute blocks without an expert.
    """
    width, share = experts.size // (tp // ep), 1.0 / ep
    up, down = gemms.curve(2 * width, hidden, "fp8_block"), gemms.curve(hidden, width, "fp8_block")
    held = QUANTIZING if gemms.tables is not None and gemms.tables.rows("gemm", "fp8_block") else 0.0
    weights = 3.0 * hidden * width * WEIGHT_BYTES["fp8_block"]
    times = []
    for tokens in _TOKENS:
        rows = buffer_rows(tokens, experts, share) if every_block else filled_rows(tokens, experts, share)
        moved = 6.0 * rows * width + 4.0 * tokens * experts.per_token * share * hidden
        products = up.at(rows) + down.at(rows) - held * (rows - tokens) * hidden + moved / gemms.roofline.rate
        reading = share * experts.touched(tokens) * weights / gemms.roofline.rate
        times.append(_LAUNCHES * gemms.roofline.launch_ns + max(products, reading))
    return Curve(_TOKENS, times, EXTRAPOLATED)


def buffer_rows(tokens: int, experts: Experts, share: float = 1.0) -> int:
    """Return the number of rows in the buffer on a GPU with `share` of the experts (vLLM's compute_aligned_M)."""
    most = tokens * experts.per_token + round(experts.count * share) * (BLOCK - 1)
    return -(-most // BLOCK) * BLOCK


def filled_rows(tokens: int, experts: Experts, share: float = 1.0) -> float:
    """Return the expected number of rows in blocks that hold a token, on a GPU with `share` of the experts. For load
    imbalance, see `servesim.cost.marlin`."""
    chance = beta_binomial(tokens, experts.per_token / experts.count)
    return experts.count * share * float(chance @ -(-np.arange(tokens + 1) // BLOCK)) * BLOCK
