"""Paged KV memory without sharing: fixed-size blocks, and a block table per request (PagedAttention, SOSP'23).

Block ids and free order follow vLLM 0.33 (vllm/v1/core/block_pool.py) with prefix caching off.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory, Usage, kv_allocators
from servesim.contracts.request import Request

from ._block_tables import BlockTables, ids


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged(BlockTables):
    """Paged memory whose blocks come from a LIFO free list. Block 0 is vLLM's null block, which is never allocated, so
    `num_blocks - 1` are usable; fresh blocks go out in the order 1, 2, 3, ...

    Samples forked from a request share its blocks, with holders counted per block. If others hold the last, partly
    filled block, the first request that writes to it copies it (vLLM V0: core/block_manager_v1.py).
    """

    supports = frozenset({"fork"})

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.capacity_tokens = (self.num_blocks - 1) * self.block_size
        self._extra: dict[int, int] = {}  # block -> holders beyond the first
        self._partial: dict[int, int] = {}  # partly filled block shared by samples -> its unused slots
        self._overlap = 0  # how many of those slots `held_tokens` and `_table_blocks` count more than once
        self._layouts: dict[Request, list[int]] = {}  # request swapped out with samples -> numbers of its blocks

    def fits(self, request: Request) -> bool:
        """Return whether a request can be held. If several samples are to be forked, each needs blocks beyond the
        shared ones, and each may need one free block at every step."""
        if (n := request.num_sequences) == 1:
            return super().fits(request)
        shared, rest = divmod(request.prompt_len, self.block_size)
        return shared + n * (self._blocks(rest + request.max_tokens) + 1) < self.num_blocks

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        tokens = hit.num_tokens + now_tokens
        if tokens < full_tokens:
            tokens = full_tokens
        needed = self._blocks(tokens if tokens < self.max_model_len else self.max_model_len)
        if hit.num_tokens:  # adopting an idle block of a hit removes it from the free list
            needed -= self._blocks(hit.num_tokens) - self._blocks(self.idle_tokens(hit))
        if reserve:
            needed += self._blocks(reserve)
        return needed <= self.num_free_blocks()

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        table = self._tables[request] = self._adopt(request, hit)
        self._table_blocks += len(table)
        end = min(hit.num_tokens + num_tokens + lookahead, self.max_model_len)
        table += self._take(self._blocks(end) - len(table))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        end = request._num_computed_tokens + num_tokens + lookahead
        table = self._tables[request]
        if self._partial and table[-1] in self._partial:
            return self._copy_on_write(table, end)
        if end <= len(table) * self.block_size:
            return True
        short = self._blocks(min(end, self.max_model_len)) - len(table)
        if short > self.num_free_blocks():
            return False
        table += self._take(short)
        return True

    def free(self, request: Request) -> None:
        table = self._tables.pop(request)
        self._table_blocks -= len(table)
        if self._extra:
            table = ids([block for block in table if not self._still_held(block)])
        self._fresh.give(table)  # the last block first

    def fork(self, request: Request, sample: Request) -> None:
        computed = request.num_computed_tokens
        table = self._tables[sample] = self._tables[request][: self._blocks(computed)]
        self._table_blocks += len(table)
        counted = self._share(request, sample)
        for block in table[counted:]:
            self._extra[block] = self._extra.get(block, 0) + 1
        if unused := -computed % self.block_size:
            self._partial[table[-1]] = unused
            self._overlap += unused

    def swap_out(self, request: Request, samples: Sequence[Request] = ()) -> int:
        if samples:
            numbers: dict[int, int] = {}
            for each in (request, *samples):
                table = self._tables[each][: self._blocks(each.num_computed_tokens)]
                self._layouts[each] = [numbers.setdefault(block, len(numbers)) for block in table]
        return super().swap_out(request, samples)

    def can_swap_in(self, request: Request, num_tokens: int, reserve: int, samples: Sequence[Request] = ()) -> bool:
        """Return whether a swapped request fits. With several samples, assume like vLLM V0 that each may need one more
        block."""
        if not samples:
            return super().can_swap_in(request, num_tokens, reserve)
        needed = self._host[request] + 1 + len(samples)
        return needed <= self.num_free_blocks() - self._blocks(reserve)

    def swap_in(self, request: Request, num_tokens: int, lookahead: int, samples: Sequence[Request] = ()) -> int:
        if not samples:
            return super().swap_in(request, num_tokens, lookahead)
        blocks = self._take(self._host[request])
        self._table_blocks -= len(blocks)
        together = (request, *samples)
        for each in together:
            table = self._tables[each] = ids([blocks[number] for number in self._layouts.pop(each)])
            self._table_blocks += len(table)
        self._restored(together)
        for each in together:
            self.grow(each, num_tokens, lookahead)
        return sum(self.drop_swapped(each) for each in together) * self.memory.block_size

    def drop_swapped(self, request: Request) -> int:
        if self._layouts.pop(request, None) is not None and request.parent is not None:
            heir = next((sample for sample in request.parent.members if sample in self._layouts), None)
            if heir is not None:  # shared blocks stay
                self._host[heir] += self._host[request]
                self._host[request] = 0
        return super().drop_swapped(request)

    def usage(self) -> Usage:
        free = self.num_free_blocks() * self.block_size
        internal = self._table_blocks * self.block_size - self.held_tokens - self._overlap
        return Usage(self.capacity_tokens - free - internal, internal, 0, free)

    def sharing(self) -> tuple[int, int]:
        return self._table_blocks, sum(self._extra.values())

    def check_integrity(self) -> None:
        super().check_integrity()
        held = [b for table in self.tables.values() for b in table]
        assert self._table_blocks == len(held), "table blocks miscounted"
        self.check_free(held)
        self._check_sharing(held)

    def _host_blocks(self, request: Request, samples: Sequence[Request] = ()) -> int:
        if not samples:
            return super()._host_blocks(request)
        tables = [self._tables[each][: self._blocks(each.num_computed_tokens)] for each in (request, *samples)]
        return len({block for table in tables for block in table})

    # Hooks that prefix caching overrides.

    def _adopt(self, request: Request, hit: Hit) -> array[int]:
        """Return the blocks of a hit, which the request now holds."""
        if hit.blocks:
            raise ValueError("without prefix caching there are no hits")
        return ids()

    def _share(self, request: Request, sample: Request) -> int:
        """Fork a sample from a request; return how many leading blocks need not be counted in `_extra`."""
        return 0

    def _restored(self, together: Sequence[Request]) -> None:
        """Count the holders of each block of samples restored from host memory."""
        held = Counter(block for each in together for block in self._tables[each])
        self._extra |= {block: count - 1 for block, count in held.items() if count > 1}
        for each in together:
            unused = -each.num_computed_tokens % self.block_size
            last = self._tables[each][-1]
            if unused and held[last] > 1 and last not in self._partial:
                self._partial[last] = unused
                self._overlap += unused * (held[last] - 1)

    def _still_held(self, block: int) -> bool:
        """Return whether other requests still hold a block that one request releases."""
        others = self._extra.pop(block, 0)
        if others > 1:
            self._extra[block] = others - 1
        if others and block in self._partial:
            self._overlap -= self._partial[block] if others > 1 else self._partial.pop(block)
        return others > 0

    def _copy_on_write(self, table: array[int], end: int) -> bool:
        """Grow a table to token `end`, with a private copy of its last block; return False if blocks are too few."""
        short = max(self._blocks(min(end, self.max_model_len)) - len(table), 0) + 1
        if short > self.num_free_blocks():
            return False
        self._still_held(table.pop())
        self._table_blocks -= 1
        self.copied_tokens += self.block_size  # whole blocks are copied
        table += self._take(short)
        return True

    def _check_sharing(self, held: list[int]) -> None:
        extra = {block: count - 1 for block, count in Counter(held).items() if count > 1}
        assert extra == self._extra, "holder counts do not match the block tables"
        assert self._partial.keys() <= extra.keys(), "a partly filled shared block has only one holder"
        assert self._overlap == sum(extra[block] * slots for block, slots in self._partial.items()), "slots miscounted"


kv_allocators.register("paged")(Paged)
