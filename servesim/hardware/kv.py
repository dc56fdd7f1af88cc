"""KV cache layout: how vLLM groups the layers of a model, and what a block of each group takes.

Layers that attend everything and layers that slide a window keep different blocks of a request. vLLM puts layers
of one kind into groups, all groups with the same number of layers so that a block of any group has the same size
and all draw from one pool; every group has its own block table. A state takes a block of its group: blocks are made as
long as one needs (vllm/platforms/interface.py, "attention page size is >= mamba page size"), and the block in which the
last computed token lies is the one that holds it, a window of that token and the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from servesim.hardware.layers import STATE_WINDOW, Layer
from servesim.hardware.model import ModelSpec

_NEARLY_EQUAL = 1.25
"""Up to this ratio between the kinds' layer counts vLLM pads the smaller kinds instead of splitting all into groups
of the smallest."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table."""

    layers: int
    """Layers of the group."""
    window: int = 0
    """Tokens their queries attend; 0: all; `STATE_WINDOW`: they keep a state."""

    def blocks(self, tokens: int, block_size: int, in_flight: int = 1) -> int:
        """Return the most blocks a request of `tokens` tokens holds, of which `in_flight` are computed in one step. One
        window may straddle a block more than its length needs."""
        if not self.window:
            return -(-tokens // block_size)
        if self.window == STATE_WINDOW:
            return min(2, -(-tokens // block_size))  # where it was, and where it goes on
        return -(-min(self.window - 1 + in_flight, tokens) // block_size) + 1


def kv_groups(layers: Sequence[Layer]) -> list[KvGroup]:
    """Group `layers` (of a model, or of one pipeline stage) by block table: full attention first, then by window."""
    kinds = Counter(
        STATE_WINDOW if layer.recurrent else layer.window for layer in layers if layer.owns_kv or layer.recurrent
    )
    if len(kinds) <= 1:
        return [KvGroup(count, window) for window, count in kinds.items()]
    least, most = min(kinds.values()), max(kinds.values())
    size = most if most < least * _NEARLY_EQUAL else least
    groups = []
    for window in sorted(kinds):
        left = kinds[window]
        while left > 0:
            groups.append(KvGroup(min(size, left), window))
            left -= size
    return groups


_ALIGNED = 16
"""Tokens that the length of a block is a multiple of where states decide it."""


def state_block_size(model: ModelSpec, block_size: int, kv_dtype: str = "bf16", tp: int = 1) -> int:
    """Return the tokens of a block whose keys and values of one layer take at least a state's bytes on one GPU; no
    fewer than `block_size`."""
    if model.recurrent is None or not any(layer.owns_kv for layer in model.layers):
        return block_size
    sixteen = _ALIGNED * model.kv_bytes_per_token_per_layer(kv_dtype, tp)
    return max(block_size, _ALIGNED * -(-model.recurrent.state_bytes(tp) // sixteen))


def page_bytes(model: ModelSpec, block_size: int, kv_dtype: str = "bf16", tp: int = 1) -> int:
    """Return the bytes of a block in one layer on one GPU."""
    return block_size * model.kv_bytes_per_token_per_layer(kv_dtype, tp)


def block_bytes(groups: Sequence[KvGroup], page: int) -> int:
    """Return the bytes of a block in the pool all groups draw from: the pages of the largest group."""
    return page * max((group.layers for group in groups), default=0)


def max_concurrency(
    num_blocks: int, groups: Sequence[KvGroup], block_size: int, max_model_len: int, in_flight: int
) -> float:
    """Return how many requests of `max_model_len` tokens `num_blocks` blocks hold at a time, as vLLM reports it at
    start-up."""
    return num_blocks / sum(group.blocks(max_model_len, block_size, in_flight) for group in groups)


def longest(num_blocks: int, groups: Sequence[KvGroup], block_size: int, in_flight: int) -> int:
    """Return the length in tokens of the longest request that `num_blocks` blocks hold."""
    low, high = 0, num_blocks * block_size
    while low < high:
        middle = (low + high + 1) // 2
        if sum(group.blocks(middle, block_size, in_flight) for group in groups) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low
