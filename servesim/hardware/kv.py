"""KV cache layout: how vLLM groups the layers of a model, and the size of a block of each group.

Layers with full attention and layers with a sliding window keep different blocks of a request. vLLM puts layers of one
kind into groups. All groups have the same number of layers, so that their blocks have the same size and come from one
pool; every group has its own block table. A recurrent state takes a block of its group: blocks are made large enough to
hold one (vllm/platforms/interface.py, "attention page size is >= mamba page size"). The block with the last computed
token holds the state, so its window is that token and the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from servesim.hardware.layers import STATE_WINDOW, Layer
from servesim.hardware.model import ModelSpec

_NEARLY_EQUAL = 1.25
"""Ratio between the kinds' layer counts up to which vLLM pads the smaller kinds instead of splitting all kinds into
groups the size of the smallest."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table."""

    layers: int
    """Number of layers in the group."""
    window: int = 0
    """Tokens that their queries attend to; 0: all; `STATE_WINDOW`: the layers keep a state."""

    def blocks(self, tokens: int, block_size: int, in_flight: int = 1) -> int:
        """Return the maximum number of blocks that a request of `tokens` tokens holds, of which `in_flight` are
        computed in one step. A window may span one block more than its length requires."""
        if not self.window:
            return -(-tokens // block_size)
        if self.window == STATE_WINDOW:
            return min(2, -(-tokens // block_size))  # the state's block and the next one
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
"""Number that the tokens in a block are a multiple of if states determine the block size."""


def state_block_size(model: ModelSpec, block_size: int, kv_dtype: str = "bf16", tp: int = 1) -> int:
    """Return the number of tokens in a block such that their keys and values in one layer take at least as many bytes
    as a state on one GPU; at least `block_size`."""
    if model.recurrent is None or not any(layer.owns_kv for layer in model.layers):
        return block_size
    sixteen = _ALIGNED * model.kv_bytes_per_token_per_layer(kv_dtype, tp)
    return max(block_size, _ALIGNED * -(-model.recurrent.state_bytes(tp) // sixteen))


def page_bytes(model: ModelSpec, block_size: int, kv_dtype: str = "bf16", tp: int = 1) -> int:
    """Return the bytes of a block in one layer on one GPU."""
    return block_size * model.kv_bytes_per_token_per_layer(kv_dtype, tp)


def block_bytes(groups: Sequence[KvGroup], page: int) -> int:
    """Return the bytes of a block in the pool shared by all groups: the pages of the largest group."""
    return page * max((group.layers for group in groups), default=0)


def max_concurrency(
    num_blocks: int, groups: Sequence[KvGroup], block_size: int, max_model_len: int, in_flight: int
) -> float:
    """Return how many requests of `max_model_len` tokens fit in `num_blocks` blocks at the same time, as vLLM reports
    it at start-up."""
    return num_blocks / sum(group.blocks(max_model_len, block_size, in_flight) for group in groups)


def longest(num_blocks: int, groups: Sequence[KvGroup], block_size: int, in_flight: int) -> int:
    """Return the length in tokens of the longest request that fits in `num_blocks` blocks."""
    low, high = 0, num_blocks * block_size
    while low < high:
        middle = (low + high + 1) // 2
        if sum(group.blocks(middle, block_size, in_flight) for group in groups) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low
