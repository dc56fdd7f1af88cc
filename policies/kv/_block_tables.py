"""Block tables filled from a free list."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator, KVMemory
from servesim.contracts.request import Request


def ids(blocks: Any = ()) -> array[int]:
    """Return block ids in order as four-byte integers: a block table, part of one, or part of the free list."""
    return array("i", blocks)


MANY = 512  # numpy is faster from this size up
WIDTH = ids().itemsize


_COUNTED = ids(range(1 << 10))
"""Ids 0, 1, 2, ..., more as they are needed: from these a part is copied faster than it is counted."""


class FreeStack:
    """Free blocks: the most recently returned block is taken first, followed by never-used blocks 1, 2, 3, ..."""

    __slots__ = ("_given", "_next", "_top", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        """Start with blocks 1 to `num_blocks` - 1."""
        self._given = ids()  # returned blocks; not truncated on take, since that would move the rest
        self._top = 0  # how many returned blocks are still free
        self._next = 1  # first never-used block
        self.num_blocks = num_blocks - 1
        """Number of free blocks."""

    def give(self, blocks: array[int]) -> None:
        """Put blocks back."""
        n, top = len(blocks), self._top
        self._given[top : top + n] = blocks
        self._top = top + n
        self.num_blocks += n

    def take(self, n: int) -> array[int]:
        """Take n blocks in order. At least n must be free."""
        top = self._top
        unused = n - top
        if unused > 0:
            blocks = self.take(top)
            first = self._next
            self._next = last = first + unused
            self.num_blocks -= unused
            while last > len(_COUNTED):
                _COUNTED.frombytes(np.arange(len(_COUNTED), 2 * len(_COUNTED), dtype=np.intc).tobytes())
            blocks += _COUNTED[first:last]
            return blocks
        self.num_blocks -= n
        self._top = left = top - n
        blocks = self._given[left:top]
        if n < MANY:
            blocks.reverse()
            return blocks
        return ids(np.ascontiguousarray(np.frombuffer(blocks, np.intc)[::-1]).tobytes())

    def order(self) -> list[int]:
        """Return all free blocks in the order in which they would be taken."""
        return self.returned() + list(self.unused)

    def returned(self) -> list[int]:
        """Return the blocks that were put back, the most recent first."""
        return self._given[: self._top][::-1].tolist()

    @property
    def unused(self) -> range:
        """Never-used blocks."""
        return range(self._next, self._next + self.num_blocks - self._top)


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockTables(KVAllocator):
    """Blocks and the requests that hold them. Never-used and returned blocks are handed out before any cached ones,
    starting with the most recently returned block."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._fresh = FreeStack(self.num_blocks)
        self._tables: dict[Request, array[int]] = {}
        self._table_blocks = 0  # across tables

    @property
    def tables(self) -> dict[Request, list[int]]:
        """A copy of the block table of each request that holds memory."""
        return {request: table.tolist() for request, table in self._tables.items()}

    def num_free_blocks(self) -> int:
        """Return how many blocks can be allocated now."""
        return self._fresh.num_blocks

    def free_order(self) -> list[int]:
        """Return the free blocks in the order in which they would be handed out."""
        return self._fresh.order()

    def check_free(self, held: list[int]) -> None:
        """Raise AssertionError if a block is not either free or held. Never-used blocks are checked by number range
        only, so the cost grows with the memory in use, not with the total."""
        free, unused = self._returned(), self._fresh.unused
        used = [*free, *held]
        assert len(free) == len(set(free)), "a block is free twice"
        assert not set(free) & set(held), "a block is both free and held"
        assert not used or not unused or max(used) < unused.start, "a block that was never used is in use"
        assert not unused or unused.stop == self.num_blocks, "a block is lost"
        assert len(set(used)) + len(unused) == self.num_blocks - 1, "a block is lost"
        assert 0 not in used, "the null block is in use"

    def _returned(self) -> list[int]:
        """Return the free blocks that were used before."""
        return self._fresh.returned()

    def slots(self, request: Request) -> int:
        table = self._tables.get(request)
        return len(table) * self.block_size if table is not None else 0

    def _take(self, n: int) -> array[int]:
        """Take the n blocks at the front of the free queue, or none if n is negative."""
        if n <= 0:
            return ids()
        self._table_blocks += n
        return self._fresh.take(n)
