"""Events of a prefix cache: which blocks can be found from now on, and which no longer (vLLM's KV events,
vllm/distributed/kv_events.py).

A block is known by its key, the identity of everything up to its end: `request.content.prefix_key(end)`, or
`(request.salt, key)` where the request has a salt (with hash_lookahead_tokens=L, that of L tokens more). So a
listener finds the blocks of a prompt without asking the cache. Several copies of a block may be stored; as in vLLM each
is told of, and removed, on its own. Prompts of unknown content are not told of: no other request can find them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class BlockStored(NamedTuple):
    """Blocks that can be found from now on, one behind the other."""

    keys: tuple[Hashable, ...]
    parent: Hashable | None
    """Key of the block before the first; None: they begin the prompt."""
    block_size: int
    """Tokens of each."""


class BlockRemoved(NamedTuple):
    """Blocks that are given up, first to last."""

    keys: tuple[Hashable, ...]


class AllBlocksCleared(NamedTuple):
    """No block can be found any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def key_of(content_key: Hashable, salt: str) -> Hashable:
    """Return the key of a block from the identity of its content; prompts of different salts share nothing."""
    return (salt, content_key) if salt else content_key
