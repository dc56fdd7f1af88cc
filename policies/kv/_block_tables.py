"""Block tables filled from a free list, also those of requests in lockstep, which are made when somebody asks.

In a step of the lockstep every request whose last block is full is dealt one, in the order in which they joined. So
requests whose blocks are full at the same step are dealt theirs together, and whose is which is entered later.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator, KVMemory
from servesim.contracts.request import Request


def ids(blocks: Any = ()) -> array[int]:
    """Blocks in order, four bytes each: a block table, or a part of one, or of the free list."""
    return array("i", blocks)


MANY = 512  # blocks from which numpy is quicker
WIDTH = ids().itemsize


class FreeStack:
    """Free blocks: the last one given back is the first to be taken; behind those never used, 1, 2, 3, ..."""

    __slots__ = ("_given", "_next", "_top", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        """Blocks 1 to `num_blocks` - 1."""
        self._given = ids()  # given back; not cut off when taken again, since that would move what is left
        self._top = 0  # how many of them are still free
        self._next = 1  # the first one never used
        self.num_blocks = num_blocks - 1
        """Free ones."""

    def give(self, blocks: array[int]) -> None:
        """Give blocks back."""
        n, top = len(blocks), self._top
        self._given[top : top + n] = blocks
        self._top = top + n
        self.num_blocks += n

    def take(self, n: int) -> array[int]:
        """So many, in the order in which they go out. Only as many as there are."""
        top = self._top
        unused = n - top
        if unused > 0:
            blocks = self.take(top)
            first = self._next
            self._next = last = first + unused
            self.num_blocks -= unused
            if unused < MANY:
                blocks.extend(range(first, last))
            else:
                blocks.frombytes(np.arange(first, last, dtype=np.intc).tobytes())
            return blocks
        self.num_blocks -= n
        self._top = left = top - n
        blocks = self._given[left:top]
        if n < MANY:
            blocks.reverse()
            return blocks
        return ids(np.ascontiguousarray(np.frombuffer(blocks, np.intc)[::-1]).tobytes())

    def order(self) -> list[int]:
        """All of them, in that order."""
        unused = self.num_blocks - self._top
        return self._given[: self._top][::-1].tolist() + list(range(self._next, self._next + unused))


class Rank:
    """Requests in lockstep that need their next block at the same step, in the order in which they joined."""

    __slots__ = ("_parts", "rounds", "size")

    def __init__(self) -> None:
        self.size = 0
        """Requests."""
        self.rounds: list[bytes] = []
        """Of a block for each, in that order, dealt since one joined or left."""
        self._parts: dict[Request, list[bytes]] = {}  # what each was dealt before that

    def join(self, request: Request) -> None:
        """One more request."""
        self._sort()
        self._parts[request] = []
        self.size += 1

    def leave(self, request: Request) -> bytes:
        """One request less; what it was dealt and nobody has collected."""
        blocks = self.collect(request)
        del self._parts[request]
        self.size -= 1
        return blocks

    def collect(self, request: Request) -> bytes:
        """What a request was dealt since that was last asked for."""
        self._sort()
        parts = self._parts[request]
        blocks = b"".join(parts)
        parts.clear()
        return blocks

    def _sort(self) -> None:
        """Rounds by request."""
        if not self.rounds:
            return
        size, rounds, everyone = self.size, len(self.rounds), self._parts.values()
        blocks = b"".join(self.rounds)
        self.rounds.clear()
        if size == 1:
            for parts in everyone:
                parts.append(blocks)
        elif rounds * size < MANY:
            dealt = ids(blocks)
            for i, parts in enumerate(everyone):
                parts.append(dealt[i::size].tobytes())
        else:
            blocks = np.frombuffer(blocks, np.intc).reshape(rounds, size).T.copy().tobytes()
            each = rounds * WIDTH
            for i, parts in enumerate(everyone):
                parts.append(blocks[i * each : (i + 1) * each])


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockTables(KVAllocator):
    """Who holds which blocks. Those never used or given back go out first, the last one given back foremost."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._fresh = FreeStack(self.num_blocks)
        self._tables: dict[Request, array[int]] = {}  # of requests in lockstep without what is with their rank
        self._table_blocks = 0  # in all of them, that included
        # Of requests in lockstep, by the step ids (modulo the block size) at which they need a block.
        self._ranks: dict[int, Rank] = {}
        self._rank_of: dict[Request, Rank] = {}

    @property
    def tables(self) -> dict[Request, list[int]]:
        """A copy of the block table of each request that holds memory."""
        for request in self._rank_of:
            self._complete(request)
        return {request: table.tolist() for request, table in self._tables.items()}

    def num_free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return self._fresh.num_blocks

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they would be handed out."""
        return self._fresh.order()

    def slots(self, request: Request) -> int:
        self._complete(request)
        table = self._tables.get(request)
        return len(table) * self.block_size if table is not None else 0

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if len(self._tables[request]) != self._blocks(num_tokens):
            return False
        phase = -offset % self.block_size
        rank = self._ranks.get(phase)
        if rank is None:
            rank = self._ranks[phase] = Rank()
        rank.join(request)
        self._rank_of[request] = rank
        return True

    def leave(self, request: Request, offset: int) -> None:
        rank = self._rank_of.pop(request)
        self._tables[request].frombytes(rank.leave(request))
        if not rank.size:
            del self._ranks[-offset % self.block_size]

    def extend(self, step: int, committed: int) -> bool:
        rank = self._ranks.get(step % self.block_size)
        if rank is None:
            return True
        if rank.size > self.num_free_blocks():
            return False
        rank.rounds.append(self._take(rank.size).tobytes())
        return True

    def steps_until_full(self, step: int, limit: int) -> int:
        bs, free, n = self.block_size, self.num_free_blocks(), len(self._rank_of)
        if n * -(-limit // bs) <= free:
            return limit
        cycles, free = divmod(free, n)
        for steps in range(bs):
            rank = self._ranks.get((step + steps) % bs)
            if rank is not None:
                free -= rank.size
                if free < 0:
                    return min(cycles * bs + steps, limit)
        return limit

    def extend_run(self, step: int, committed: int, k: int) -> list[tuple[int, int]]:
        bs, ranks = self.block_size, self._ranks
        due: list[Rank] = []
        grown: list[tuple[int, int]] = []
        for i in sorted([(phase - step) % bs for phase in ranks]):
            if i >= k:
                break
            rank = ranks[(step + i) % bs]
            due.append(rank)
            grown.append((i + 1, rank.size * bs))
        if k > bs:  # the same again, a block later
            grown = [(i + later, tokens) for later in range(0, k, bs) for i, tokens in grown if i + later <= k]
        blocks = self._take(sum([tokens for _, tokens in grown]) // bs).tobytes()
        first, cycle, total = 0, len(self._rank_of) * WIDTH, len(blocks)
        for rank in due:
            size = rank.size * WIDTH
            for start in range(first, total, cycle):
                rank.rounds.append(blocks[start : start + size])
            first += size
        return grown

    def _complete(self, request: Request) -> None:
        """Make the table of a request complete."""
        rank = self._rank_of.get(request)
        if rank is not None:
            self._tables[request].frombytes(rank.collect(request))

    def _take(self, n: int) -> array[int]:
        """The n blocks at the front of the free queue; none if n is negative."""
        if n <= 0:
            return ids()
        self._table_blocks += n
        return self._fresh.take(n)
