"""Events of a prefix cache: which blocks become findable, and which no longer are (vLLM's KV events,
vllm/distributed/kv_events.py).

A block is identified by its key, the identity of everything up to its end: `request.content.prefix_key(end)`, or
`(request.salt, key)` if the request has a salt (with hash_lookahead_tokens=L, the key that covers L more tokens). A
listener can thus find the blocks of a prompt without querying the cache. Several copies of a block may be stored; as in
vLLM, each copy has its own events. Prompts of unknown content have no events, since no other request can find them.
Memory beyond the GPU that is a replica's own has events, too, of GPU blocks that can be read there or were dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, NamedTuple

from servesim.contracts.request import PrefixIdentity

Medium = Literal["gpu", "cpu", "storage"]  # GPU or host memory, or a disk (vllm/v1/kv_offload/base.py of 0.33)


class BlockStored(NamedTuple):
    """Blocks that become findable, in order. They begin at token `start` of `content`; None if not told."""

    keys: tuple[Hashable, ...]
    parent: Hashable | None
    """Key of the block before the first, or None if they start the prompt."""
    block_size: int
    """Tokens per block."""
    content: PrefixIdentity | None = None
    start: int = 0
    medium: Medium = "gpu"


class BlockRemoved(NamedTuple):
    """Blocks that are removed, first to last."""

    keys: tuple[Hashable, ...]
    medium: Medium = "gpu"


class AllBlocksCleared(NamedTuple):
    """Removal of all blocks from the GPU."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def key_of(content_key: Hashable, salt: str) -> Hashable:
    """Return the key of a block from the identity of its content; prompts with different salts share nothing."""
    return (salt, content_key) if salt else content_key
