"""`prefix-hash` with a hash for every block: what its runs of blocks are compared with."""

from __future__ import annotations

from typing import Any

from servesim.contracts import KVMemory
from servesim.contracts.request import Request
from servesim.engine.fast.memory import stands_for
from servesim.policies.kv._blockwise import BlockwisePrefix
from servesim.policies.kv.fast import PublishingTables


class ByBlock(BlockwisePrefix):
    """Nothing but a table from hash to blocks, and a queue of blocks."""


class FastByBlock(ByBlock, PublishingTables):
    """The same in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.open_ranks()
        self._filling, self._committed = {}, 0

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        return not self.params.hash_lookahead_tokens and super().join(request, offset, num_tokens)

    @property
    def tables(self) -> dict[Request, list[int]]:
        self.complete_all()
        return super().tables

    def slots(self, request: Request) -> int:
        self.complete(request)
        return super().slots(request)


stands_for(ByBlock, FastByBlock)
