"""A prefix cache that evicts by rank: like `prefix-hash` except for which idle block is evicted first.

A base class for custom caches. `rank` is the only method to write:

    class Lfu(Evicting):
        def rank(self, block):
            return block.hits

A cache derived from `Evicting` is simulated step by step; one derived from `servesim.engine.fast.kv.FastEvicting` runs
in fast mode.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv import Hit, KVMemory
from servesim.contracts.request import Request
from servesim.errors import PolicyError

from ._blockwise import BlockwisePrefix


@dataclass(slots=True)
class CachedBlock:
    """A full block, held or idle, with the data that its rank may use."""

    block: int
    """Id of the block."""
    key: Hashable
    """Identity of all tokens up to its end, equal for equal content; None if the content is not in the trace."""
    depth: int
    """Number of blocks before it in its prompt."""
    hits: int = 0
    """Number of admitted requests whose hit included this block."""
    last_used: int = 0
    """Sequence number, from 1, of the admission or release that last used it."""


class Evicting(BlockwisePrefix):
    """Prefix cache that evicts idle blocks with the lowest `rank` first; among equals, the least recently released, and
    later blocks of a prompt before earlier ones. Idle blocks that are not full are evicted before all others."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.full: dict[int, CachedBlock] = {}
        """Full blocks by id, held or idle."""
        self._num_uses = 0
        self._num_entries = 0
        self._entry: dict[int, int] = {}  # idle block -> number of its entry
        self._heap: list[tuple[bool, Any, int, int]] = []  # (full, rank, number, block), including stale entries

    def rank(self, block: CachedBlock) -> Any:
        """Return the rank of a block that no request holds anymore, as a comparable number or tuple: the lowest is
        evicted first. This method is called when the block becomes idle, and by `rank_again`."""
        raise NotImplementedError(f"{self.name} has no method rank")

    def rank_again(self, block: int) -> None:
        """Recompute the rank of an idle block after it has changed."""
        full = self.full.get(block)
        rank = 0 if full is None else self.rank(full)
        if rank is None:
            raise PolicyError(f"{self.name}: rank returned None, not a number or tuple that can be compared")
        self._num_entries += 1
        self._entry[block] = self._num_entries
        entry = (full is not None, rank, self._num_entries, block)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + 64:
            self._heap = [entry for entry in self._heap if self._entry.get(entry[-1]) == entry[-2]]
            heapq.heapify(self._heap)

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        self._num_uses += 1
        super().admit(request, hit, num_tokens, lookahead)

    def free(self, request: Request) -> None:
        table = self._tables[request].tolist()
        super().free(request)
        self._num_uses += 1
        for block in reversed(table):
            if (full := self.full.get(block)) is not None:
                full.last_used = self._num_uses
            if block in self._idle and block not in self._entry:
                self.rank_again(block)

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        if done:
            self.full.clear()
            self._entry.clear()
            self._heap.clear()
        return done

    def _adopt(self, request: Request, hit: Hit) -> array[int]:
        for block in hit.blocks:
            full = self.full[block]
            full.hits += 1
            full.last_used = self._num_uses
            self._entry.pop(block, None)
        return super()._adopt(request, hit)

    def _enter(self, request: Request, start: int, stop: int) -> None:
        super()._enter(request, start, stop)
        for depth, block in enumerate(self._tables[request][start:stop], start):
            if block not in self.full:  # else samples share it
                self.full[block] = CachedBlock(block, self._key_of.get(block), depth, 0, self._num_uses)

    def _victims(self, n: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < n:
            *_, number, block = heapq.heappop(self._heap)
            if self._entry.get(block) == number:
                del self._entry[block], self._idle[block]
                self.full.pop(block, None)
                victims.append(block)
        return victims

    def _check_sharing(self, held: list[int]) -> None:
        super()._check_sharing(held)
        assert self._entry.keys() == self._idle.keys(), "an idle block has no rank, or a held block has one"
        current = {(number, block) for _, _, number, block in self._heap}
        assert all((number, block) in current for block, number in self._entry.items()), (
            "an idle block cannot be evicted"
        )
        assert self._key_of.keys() <= self.full.keys(), "a cached block has no CachedBlock"
