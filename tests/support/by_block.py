"""`prefix-hash` with a hash for every block: what its runs of blocks are compared with."""

from __future__ import annotations

from servesim.policies.kv._blockwise import BlockwisePrefix


class ByBlock(BlockwisePrefix):
    """Nothing but a table from hash to blocks, and a queue of blocks."""
