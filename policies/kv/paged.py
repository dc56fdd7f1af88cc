"""Paged KV memory without sharing: fixed blocks, a block table per request (PagedAttention, SOSP'23).

Block ids and free order follow vLLM 0.33 (vllm/v1/core/block_pool.py) with prefix caching off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.kv import Hit, KVAllocator, KVMemory, Usage, kv_allocators
from servesim.engine.request import Request

from ._growth import rounds_until_short


@kv_allocators.register("paged")
class Paged(KVAllocator):
    """Blocks are handed out from a LIFO free list. Block 0 is vLLM's null block, never allocated, so
    `num_blocks - 1` are usable; fresh ones go out in the order 1, 2, 3, ..."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.capacity_tokens = (self.num_blocks - 1) * self.block_size
        self.tables: dict[Request, list[int]] = {}
        self._fresh = list(range(self.num_blocks - 1, 0, -1))  # top of the stack = front of the free queue
        self._table_blocks = 0  # sum of the lengths of all tables

    def num_free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._fresh)

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they would be handed out."""
        return self._fresh[::-1]

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        free = self.num_free_blocks() - self._blocks(reserve)
        held = len(hit.blocks) - self._blocks(self.idle_tokens(hit))  # adopting an idle one takes it off the free list
        return all(
            self._blocks(min(tokens, self.max_model_len)) - held <= free
            for tokens in (full_tokens, hit.num_tokens + now_tokens)
        )

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        table = self.tables[request] = []
        self._adopt(table, hit)
        end = min(hit.num_tokens + num_tokens + lookahead, self.max_model_len)
        self._take(table, self._blocks(end) - len(table))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        end = request.num_computed_tokens + num_tokens + lookahead
        table = self.tables[request]
        if end <= len(table) * self.block_size:
            return True
        short = self._blocks(min(end, self.max_model_len)) - len(table)
        if short > self.num_free_blocks():
            return False
        self._take(table, short)
        return True

    def free(self, request: Request) -> None:
        table = self.tables.pop(request)
        self._table_blocks -= len(table)
        self._fresh += table  # the last block foremost

    def slots(self, request: Request) -> int:
        table = self.tables.get(request)
        return len(table) * self.block_size if table is not None else 0

    def usage(self) -> Usage:
        free = self.num_free_blocks() * self.block_size
        internal = self._table_blocks * self.block_size - self.held_tokens
        return Usage(self.capacity_tokens - free - internal, internal, 0, free)

    def steps_until_short(self, requests: Sequence[Request], limit: int) -> int:
        slack = [len(self.tables[r]) * self.block_size - r.num_computed_tokens for r in requests]
        return rounds_until_short(slack, self.block_size, self.num_free_blocks(), limit)

    def grow_run(self, requests: Sequence[Request], k: int) -> list[tuple[int, int]]:
        bs = self.block_size
        due: dict[int, list[list[int]]] = {}
        for request in requests:
            table = self.tables[request]
            first = len(table) * bs - request.num_computed_tokens + 1
            for step in range(first, k + 1, bs):
                due.setdefault(step, []).append(table)
        grown = []
        for step in sorted(due):
            for table in due[step]:
                self._take(table, 1)
            grown.append((step, len(due[step]) * bs))
        return grown

    def rounds_that_fit(self, requests: Sequence[Request], ends: NDArray[np.int64]) -> int:
        held = np.array([len(self.tables[request]) for request in requests])
        needed = np.maximum(-(-ends // self.block_size) - held, 0).sum(axis=1)
        return int(np.searchsorted(needed, self.num_free_blocks(), side="right"))

    def grow_rounds(
        self, requests: Sequence[Request], ends: NDArray[np.int64], delivered: Sequence[int]
    ) -> list[tuple[int, int]]:
        tables, grown = [self.tables[request] for request in requests], []
        for i, blocks in enumerate((-(-ends // self.block_size)).tolist(), 1):
            before = self._table_blocks
            for table, end in zip(tables, blocks, strict=True):
                self._take(table, end - len(table))
            if self._table_blocks > before:
                grown.append((i, (self._table_blocks - before) * self.block_size))
        return grown

    def check_integrity(self) -> None:
        super().check_integrity()
        free = self.free_order()
        assert len(free) == len(set(free)), "a block is free twice"
        held = [b for table in self.tables.values() for b in table]
        assert self._table_blocks == len(held), "table blocks miscounted"
        assert not set(free) & set(held), "a block is free and held"
        assert len(set(held)) + len(free) == self.num_blocks - 1, "a block is lost"
        assert 0 not in held + free, "the null block is in use"
        self._check_sharing(held)

    # What prefix caching does differently.

    def _adopt(self, table: list[int], hit: Hit) -> None:
        """Put the blocks of a hit into a table."""
        if hit.blocks:
            raise ValueError("without prefix caching there are no hits")

    def _take(self, table: list[int], n: int) -> None:
        """Move n blocks from the front of the free queue to the end of a table."""
        if n > 0:
            stack = self._fresh
            table.extend(stack[: -n - 1 : -1])
            del stack[-n:]
            self._table_blocks += n

    def _check_sharing(self, held: list[int]) -> None:
        assert len(held) == len(set(held)), "a block is held twice"
