"""A block-by-block prefix cache: each block is found by the identity of everything up to its end, the chained hash
(vLLM 0.33: vllm/v1/core/block_pool.py).

It does the same as `prefix-hash`, which works in runs of blocks, but is meant for allocators that release blocks one by
one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory
from servesim.contracts.request import Request, State
from servesim.workload.content import RunContent

from ._block_tables import FreeStack, ids
from ._prefix_caching import PrefixCaching


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockwisePrefix(PrefixCaching):
    """Prefix cache whose free queue has two parts: fresh blocks without a hash, handed out first and reused last-in
    first-out, then cached blocks, least recently freed first. Allocating a cached block evicts it."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, Hashable] = {}  # cached only
        # key -> blocks with that content, in insertion order; a single block is stored bare.
        self._cached: dict[Hashable, int | dict[int, None]] = {}

    def num_free_blocks(self) -> int:
        return self._fresh.num_blocks + len(self._idle)

    def free_order(self) -> list[int]:
        return self._fresh.order() + list(self._idle)

    def _returned(self) -> list[int]:
        return self._fresh.returned() + list(self._idle)

    def lookup(self, request: Request) -> Hit:
        """Return the longest run of cached blocks from the start, excluding the last token, which is always
        recomputed."""
        cached = self._cached
        blocks = []
        for key in self._keys(request, 0, self._findable(request)):
            found = cached.get(key)
            if found is None:
                break
            blocks.append(found if isinstance(found, int) else next(iter(found)))
        if self.params.eagle_block_drop and blocks:
            blocks.pop()
        return Hit(len(blocks) * self.block_size, tuple(blocks))

    def free(self, request: Request) -> None:
        """Free blocks, the last one first. Of the blocks that no request holds anymore, cached ones (which come first
        in a table) go to the back of the queue. The others go to the front as a group, or to the back, as in older
        releases."""
        if request.content is None and request.state is State.PREEMPTED:
            self._index(request, 0, self._published[request])
        table = self._tables.pop(request)
        self._table_blocks -= len(table)
        cached = self._published.pop(request)
        if self.params.free_order == "back":
            cached = len(table)
        fresh = table[cached:]
        del table[cached:]
        table.reverse()
        if self._extra:
            extra, still_held = self._extra, self._still_held
            fresh = ids([block for block in fresh if block not in extra or not still_held(block)])
            table = ids([block for block in table if block not in extra or not still_held(block)])
        self._fresh.give(fresh)
        self._idle.update(dict.fromkeys(table))

    def idle_tokens(self, hit: Hit) -> int:
        return self.block_size * sum(1 for block in hit.blocks if block in self._idle)

    def hit_blocks(self, hit: Hit) -> list[int]:
        """Return the ids of the blocks of a hit."""
        return list(hit.blocks)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; refuse (return False) while any block is held."""
        if self.num_free_blocks() != self.num_blocks - 1:
            return False
        order = self.free_order()
        self._fresh = FreeStack(1)  # empty
        self._fresh.give(ids(reversed(order)))
        self._idle.clear()
        self._cached.clear()
        self._key_of.clear()
        self._tell_cleared()
        return True

    def num_cached_hashes(self) -> int:
        """Return the number of distinct block contents that can be hit."""
        return len(self._cached)

    def is_cached(self, block: int) -> bool:
        """Return whether a block is cached, so that a lookup of its content finds it."""
        return block in self._key_of

    def refs(self, block: int) -> int:
        """Return how many requests hold a block."""
        if block in self._idle or block in self._fresh.order():
            return 0
        return 1 + self._extra.get(block, 0)

    def cached(self) -> list[list[int]]:
        """Return the blocks that can be hit, grouped by content, in insertion order."""
        return [[there] if isinstance(there, int) else list(there) for there in self._cached.values()]

    def _enter(self, request: Request, start: int, stop: int) -> None:
        if request.content is not None:  # else only this request can look it up: see free
            self._index(request, start, stop)

    def _index(self, request: Request, start: int, stop: int) -> None:
        """Make blocks [start, stop) of a request's table findable by their content."""
        blocks, keys = self._tables[request][start:stop], self._keys(request, start, stop)
        if not self._cached.keys().isdisjoint(keys):
            self._register(zip(blocks, keys, strict=True))
            return
        self._cached.update(zip(keys, blocks, strict=True))
        self._key_of.update(zip(blocks, keys, strict=True))

    def _register(self, blocks: Iterable[tuple[int, Hashable]]) -> None:
        """Make blocks findable, each by its key."""
        cached, key_of = self._cached, self._key_of
        for block, key in blocks:
            key_of[block] = key
            there = cached.setdefault(key, block)
            if there != block:  # another block with this content is first
                if isinstance(there, int):
                    there = cached[key] = {there: None}
                there[block] = None

    def _keys(self, request: Request, start: int, stop: int) -> Sequence[Hashable]:
        """Return the identity of everything up to the end of each block in [start, stop): the chained hash."""
        ends = self._ends(start, stop)
        content = request.content
        if content is None:  # shares only with itself
            base = (request.row + 1) << 32
            return range(-base - ends.start, -base - ends.stop, -ends.step)
        keys = content.prefix_keys(ends) if isinstance(content, RunContent) else [content.prefix_key(e) for e in ends]
        return [(request.salt, key) for key in keys] if request.salt else keys

    def _adopt(self, request: Request, hit: Hit) -> array[int]:
        return self._hold(hit.blocks)

    def _hold(self, blocks: Sequence[int]) -> array[int]:
        """Count one more holder for each of these blocks; return them as an array."""
        for block in blocks:
            if block in self._idle:
                del self._idle[block]
            else:
                self._extra[block] = self._extra.get(block, 0) + 1
        return ids(blocks)

    def _take(self, n: int) -> array[int]:
        fresh = min(n, self._fresh.num_blocks)
        blocks = super()._take(fresh)
        if n > fresh:
            victims = self._victims(n - fresh)
            if self.on_event is not None:
                self._tell_removed(victims)
            key_of, cached = self._key_of, self._cached
            for block in victims:
                key = key_of.get(block)
                if key is None:
                    continue
                if cached[key] != block:  # others with this content stay
                    self._evict(block)
                    continue
                del key_of[block]
                del cached[key]
            blocks.extend(victims)
            self._table_blocks += len(victims)
        return blocks

    def _victims(self, n: int) -> list[int]:
        """Take the n idle blocks to evict first: the least recently freed ones."""
        idle = self._idle
        return [idle.popitem(last=False)[0] for _ in range(n)]

    def _evict(self, block: int) -> None:
        key = self._key_of.pop(block)
        there = self._cached.pop(key)
        if not isinstance(there, int):
            del there[block]
            if there:  # other blocks with this content stay, in order
                self._cached[key] = there

    def _check_sharing(self, held: list[int]) -> None:
        super()._check_sharing(held)
        assert not self._idle.keys() & set(held), "a block is both idle and held"
        assert not any(self.is_cached(b) for b in self._fresh.returned()), "a cached block is listed as fresh"
        assert not any(b in self._fresh.unused for b in self._key_of), "a block that was never used is cached"
        for key, there in self._cached.items():
            for block in [there] if isinstance(there, int) else list(there):
                assert self._key_of.get(block) == key, f"block {block} is cached under a key it does not have"
        cached = sum(1 if isinstance(t, int) else len(t) for t in self._cached.values())
        assert cached == len(self._key_of), "a cached block cannot be found"
