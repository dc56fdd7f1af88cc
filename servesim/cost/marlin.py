"""Routed experts in Marlin's kernel, priced by its blocks of rows.

The kernel (vllm/model_executor/layers/fused_moe/fused_marlin_moe.py) sorts the rows of a step by expert and pads each
expert's rows to whole blocks of 8 to 64 rows; the more rows an expert has on average, the taller the block. A block
unpacks all weights of its expert and takes the same time whatever else is in the step: for blocks of one height, the
rows of the H100 and H200 tables agree on the time of a block to within a few percent, for steps of 64 to 16,384 tokens.
So a step takes `floor + blocks * time of a block`, or the time to read the weights of the experts it touches if memory
is slower.

This separates the kernel from the routing it was measured with and carries over to other shapes, since blocks and
weights take time in proportion to the parameters of an expert.

**Routing.** An expert's share of the tokens is drawn from a beta distribution around `per_token / count`, so the number
of its tokens in a step is beta-binomial; `SKEW` sets how unequal the experts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, lgamma
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.hardware.layers import Experts

HEIGHTS = (8, 16, 32, 48, 64)
"""Possible numbers of rows in a block."""
FULL = 0.9
"""Fraction of a block that an expert's mean number of rows may fill before taller blocks are used."""
SKEW = 0.4
"""First parameter of the beta distribution; if infinite, all experts are equal. Fitted to decode steps of a recorded
gpt-oss-120b server without drafts (vLLM 0.22.0, H200; tests/validation/test_recorded_gptoss_routing.py)."""
POWER = 1.2
"""Exponent of the power law of expert loads under which the tables' rows were measured."""
LOADED = 2
"""Minimum number of rows per expert at which that law describes the measurements well."""
FLOOR_NS = 28_000.0
"""Time of routing, sorting and launches where no shape was measured: the median over the 58 shapes in four tables (47
on H100, 44 on H200, 28 on RTX PRO 6000, 26 on L40S, in microseconds)."""
COLUMNS = 128
"""Columns that a block computes in the time of its fixed work. Fitted to blocks of 48 and 64 rows in the tables of
H100, H200 and RTX PRO 6000, 64 to 2,944 columns wide, relative to the widest: mean error 6 %."""


class Blocks(NamedTuple):
    """Components of the times of a measured shape, in ns."""

    floor: float
    """Time of routing, sorting and launches."""
    expert: float
    """Time to read the weights of one expert."""
    each: dict[int, float]
    """Time of a block, by its height."""


def unmeasured(hidden: int, size: int, weight_bytes: float, rate: float, flops: float) -> Blocks:
    """Return the components for experts of `hidden` x `size` on a GPU without rows of the kernel. A block takes as long
    as its arithmetic at `flops` per second, or as reading the weights of its expert at `rate` bytes per nanosecond,
    whichever is longer. (Both hold where they were measured: on an L40S blocks of 8 to 64 rows take the time to read
    their expert, and on an H100 wide ones of 32 to 64 rows compute at 246 to 289 TFLOP/s.)"""
    read = 3.0 * hidden * size * weight_bytes / rate
    row = 6.0 * hidden * (size + COLUMNS) / flops * 1e9
    return Blocks(FLOOR_NS, read, {h: max(read, h * row) for h in HEIGHTS})


def height(rows: float) -> int:
    """Return the number of rows per block in a step with `rows` rows per expert on average."""
    return next((h for h in HEIGHTS if rows / h < FULL), HEIGHTS[-1])


def last_tokens(experts: Experts, share: float = 1.0) -> list[int]:
    """Return for each block height except the last the largest step, in tokens, that uses it, on a GPU with `share` of
    the experts."""
    return [max(ceil(FULL * h * experts.count * share / experts.per_token) - 1, 1) for h in HEIGHTS[:-1]]


def step_ns(blocks: Blocks, tokens: int, experts: Experts, share: float = 1.0) -> float:
    """Return the time of a step beyond the floor on a GPU with `share` of the experts. (The kernel picks the block
    height by the number of rows per expert as if all rows went to this GPU's experts.)"""
    chance = beta_binomial(tokens, experts.per_token / experts.count)
    high, here = height(tokens * experts.per_token / (experts.count * share)), experts.count * share
    touched, filled = here * (1.0 - float(chance[0])), here * float(chance @ -(-np.arange(tokens + 1) // high))
    return max(touched * blocks.expert, filled * blocks.each[high])


def beta_binomial(n: int, mean: float, a: float = SKEW) -> NDArray[np.float64]:
    """Return the probabilities of 0 to n successes out of n, with a success probability that is beta-distributed around
    `mean`."""
    if mean >= 1.0:
        return np.append(np.zeros(n), 1.0)
    b = a * (1.0 - mean) / mean
    k = np.arange(n)
    none = exp(lgamma(b + n) + lgamma(a + b) - lgamma(b) - lgamma(a + b + n))
    return none * np.append(1.0, np.cumprod((n - k) / (k + 1.0) * (k + a) / (n - k - 1.0 + b)))


def fit(tokens: Sequence[int], ns: Sequence[float], experts: Experts) -> Blocks | None:
    """Split the times of a measured shape into components, or return None if too few were measured. One token uses
    `per_token` experts, and two tokens use twice that number."""
    known = dict(zip(tokens, ns, strict=True))
    if 1 not in known or 2 not in known:
        return None
    second = known[2] - known[1]
    floor = max(known[1] - second, 0.0)
    by_height: dict[int, list[float]] = {}
    for m, time in known.items():
        rows = m * experts.per_token / experts.count
        if rows >= LOADED:
            by_height.setdefault(height(rows), []).append((time - floor) / measured_blocks(m, experts))
    if not by_height:
        return None
    each = {h: median(by_height[min(by_height, key=lambda measured: abs(measured - h))]) for h in HEIGHTS}
    return Blocks(floor, max(second / experts.per_token, each[HEIGHTS[0]]), each)


def measured_blocks(tokens: int, experts: Experts) -> int:
    """Return the number of blocks in a measured step: the experts' rows are evenly spaced quantiles of a power law from
    1 to 0.8 `tokens`, scaled to their sum and rounded (aiconfigurator, collector/helper.py, which draws at random)."""
    low, high = 1.0, (0.8 * tokens) ** (1.0 - POWER)
    spread = (low + (high - low) * (np.arange(experts.count) + 0.5) / experts.count) ** (1.0 / (1.0 - POWER))
    rows = np.rint(spread / spread.sum() * tokens * experts.per_token)
    return int(np.ceil(rows / height(tokens * experts.per_token / experts.count)).sum())
