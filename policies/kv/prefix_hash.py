"""Paged KV memory with hash-chained prefix caching: freed full blocks stay findable by content (vLLM 0.33).

They stay findable until they are reused (vllm/v1/core/block_pool.py, kv_cache_manager.py). Block ids, hits, and the
free order match vLLM's; blocks are handled in runs (_extents.py), so that a long prompt's cost depends only on its
number of runs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory, kv_allocators
from servesim.contracts.request import Request, State
from servesim.workload.content import RunContent

from ._block_tables import FreeStack, ids
from ._extents import ContentIndex, Extent, FreeQueue
from ._prefix_caching import PrefixCaching


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixHash(PrefixCaching):
    """Prefix cache whose free queue has two parts: fresh blocks without a hash, handed out first and reused last-in
    first-out, then cached blocks, least recently freed first. Allocating a cached block evicts it. Content missing from
    the trace is never shared, and is entered only if its request may come back.

    The published blocks of a table are extents that its request holds; later blocks are private to it.
    """

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._queue = FreeQueue()
        self._index = ContentIndex()
        # The extents each request holds, up to its last published block: an extent reaches to the start of the next,
        # however many parts it has been split into since.
        self._held: dict[Request, list[Extent]] = {}
        self._shared = 0  # blocks in extents, counted once per holder after the first

    def num_free_blocks(self) -> int:
        return self._fresh.num_blocks + self._queue.num_blocks

    def free_order(self) -> list[int]:
        return self._fresh.order() + self._idle_blocks()

    def _returned(self) -> list[int]:
        return self._fresh.returned() + self._idle_blocks()

    def _idle_blocks(self) -> list[int]:
        return [block for extent in self._queue for block in reversed(extent.blocks)]

    def lookup(self, request: Request) -> Hit:
        """Return the longest run of cached blocks from the start, excluding the last token, which is always
        recomputed."""
        found: list[tuple[Extent, int, int]] = []
        block = 0
        for key, stop in self._runs(request, 0, self._findable(request)):
            while block < stop and (here := self._index.find(key, block, stop)) is not None:
                found.append((here[0], block, here[1]))
                block = here[1]
            if block < stop:
                break
        if self.params.eagle_block_drop and found:
            block -= 1
            extent, start, _ = found.pop()
            if start < block:
                found.append((extent, start, block))
        return Hit(block * self.block_size, tuple(found))

    def idle_tokens(self, hit: Hit) -> int:
        return self.block_size * sum(stop - start for extent, start, stop in self._parts(hit) if not extent.holders)

    def hit_blocks(self, hit: Hit) -> list[int]:
        """Return the ids of the blocks of a hit."""
        return [b for e, start, stop in self._parts(hit) for b in e.blocks[start - e.start : stop - e.start]]

    def free(self, request: Request) -> None:
        """Free blocks, the last one first. Of the blocks that no request holds anymore, cached ones (which come first
        in a table) go to the back of the queue. The others go to the front as a group, or to the back, as in older
        releases."""
        extents = self._extents(request)
        del self._held[request]
        table, published = self._tables.pop(request), self._published.pop(request)
        self._table_blocks -= len(table)
        own = table[published:]
        if self._extra:
            own = ids([block for block in own if block not in self._extra or not self._still_held(block)])
        if self.params.free_order == "front":
            self._fresh.give(own)
        elif own:
            self._queue.append(Extent(None, published, own, 0))
        again = request.content is None and request.state is State.PREEMPTED
        for extent in reversed(extents):
            if again and not extent.found:
                self._index.add(extent)
            self._release(extent)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; refuse (return False) while any block is held."""
        if self.num_free_blocks() != self.num_blocks - 1:
            return False
        order = self.free_order()
        self._fresh = FreeStack(1)  # empty
        self._fresh.give(ids(reversed(order)))
        self._queue = FreeQueue()
        self._index.clear()
        self._tell_cleared()
        return True

    def sharing(self) -> tuple[int, int]:
        held, extra = super().sharing()
        return held, extra + self._shared

    def cached(self) -> list[list[int]]:
        """Return the blocks that can be hit, grouped by content, in insertion order. This is slow and meant for
        inspection."""
        blocks: dict[tuple[Hashable, int], list[int]] = {}
        for extent in self._index:
            for i, block in enumerate(extent.blocks, extent.start):
                blocks.setdefault((extent.key, i), []).append(block)
        return list(blocks.values())

    def num_cached_hashes(self) -> int:
        """Return the number of distinct block contents that can be hit."""
        return len(self.cached())

    def is_cached(self, block: int) -> bool:
        """Return whether a block can be hit by its content."""
        return any(block in blocks for blocks in self.cached())

    def refs(self, block: int) -> int:
        """Return how many requests hold a block."""
        return sum(block in table for table in self.tables.values())

    def _enter(self, request: Request, start: int, stop: int) -> None:
        """Make blocks findable; blocks of unknown content are kept in the same way, but cannot be found."""
        table, held, index = self._tables[request], self._held[request], self._index
        told = request.content is not None
        last = held[-1] if held else None
        for key, end in self._runs(request, start, stop):
            blocks = table[start:end]
            if (
                last is not None and last.stop == start and last.holders == 1 and last.key == key
                and last.found == told and (not told or index.alone(last))
            ):  # fmt: skip
                last.blocks += blocks
                last.stop = end
            else:
                last = Extent(key, start, blocks, 1)
                held.append(last)
                if told:
                    index.add(last)
            start = end

    def _runs(self, request: Request, start: int, stop: int) -> Sequence[tuple[Hashable, int]]:
        """Return blocks [start, stop) of a prompt as runs: for each, the identity of the content that it continues
        (together with a block number, this is the chained hash), and the block at which it ends."""
        content = request.content
        if content is None:  # shares only with itself
            return [(-request.row - 1, stop)]
        runs: Sequence[tuple[Hashable, int]]
        if isinstance(content, RunContent):
            runs = content.block_runs(start, stop, self.block_size, self.params.hash_lookahead_tokens)
        else:
            runs = [(content.prefix_key(end), i) for i, end in enumerate(self._ends(start, stop), start + 1)]
        return [((request.salt, key), end) for key, end in runs] if request.salt else runs

    def _parts(self, hit: Hit) -> Iterator[tuple[Extent, int, int]]:
        """Yield the current extents of a hit and the blocks of each, since found extents may have been split in the
        meantime."""
        for extent, start, stop in hit.blocks:
            for part in extent.parts(stop):
                if part.stop > start:
                    yield part, max(start, part.start), min(stop, part.stop)

    def _extents(self, request: Request) -> list[Extent]:
        """Return all extents that a request holds, in order."""
        held, extents = self._held[request], []
        stops = [extent.start for extent in held[1:]] + [self._published[request]]
        for extent, stop in zip(held, stops, strict=False):
            extents += extent.parts(stop)
        return extents

    def _adopt(self, request: Request, hit: Hit) -> array[int]:
        held = self._held[request] = []
        table = ids()
        for extent, start, stop in self._parts(hit):
            if start > extent.start:
                extent = self._split(extent, start)
            if stop < extent.stop:
                self._split(extent, stop)
            held.append(extent)
            table += extent.blocks
        for extent in held:
            self._hold(extent)
        return table

    def _share(self, request: Request, sample: Request) -> int:
        super()._share(request, sample)
        held = self._held[sample] = self._extents(request)
        for extent in held:
            self._hold(extent)
        return self._published[request]

    def _restored(self, together: Sequence[Request]) -> None:
        """Immediately publish full blocks that several samples hold, one by one."""
        super()._restored(together)
        shared: dict[int, Extent] = {}
        for request in together:
            held = self._held[request] = []
            runs = self._runs(request, 0, request.num_computed_tokens // self.block_size)
            starts = [0] + [stop for _, stop in runs]
            keys = [key for (key, stop), start in zip(runs, starts, strict=False) for _ in range(start, stop)]
            for block, key in zip(self._tables[request], keys, strict=False):
                extra = self._extra.pop(block, 0)
                if extra:
                    shared[block] = Extent(key, len(held), ids([block]), 1 + extra)
                    self._shared += extra
                    if request.content is not None:
                        self._index.add(shared[block])
                elif block not in shared:
                    break
                held.append(shared[block])
            self._published[request] = len(held)
            if self.on_event is not None:
                self._tell_stored(request, 0, len(held))

    def _hold(self, extent: Extent) -> None:
        """Add one holder to an extent."""
        if extent.holders:
            self._shared += extent.stop - extent.start
        else:
            self._queue.remove(extent)
            extent.rest = None
        extent.holders += 1

    def _release(self, extent: Extent) -> None:
        """Remove one holder from an extent."""
        extent.holders -= 1
        if extent.holders:
            self._shared -= extent.stop - extent.start
        else:
            self._queue.append(extent)

    def _split(self, extent: Extent, at: int) -> Extent:
        """Split an extent in two; return the second."""
        rest = extent.split(at)
        if extent.found:
            self._index.split(extent, rest)
        if not extent.holders:
            self._queue.link(rest, extent)
        return rest

    def _take(self, n: int) -> array[int]:
        fresh = min(n, self._fresh.num_blocks)
        blocks = super()._take(fresh)
        if n == fresh:
            return blocks
        n -= fresh
        self._table_blocks += n
        queue = self._queue
        while n:
            extent = queue.first()
            size = extent.stop - extent.start
            if size > n:
                blocks += queue.cut(extent, n)
                break
            queue.remove(extent)
            if extent.found:
                self._index.remove(extent)
            blocks += extent.blocks[::-1]
            n -= size
        if self.on_event is not None:
            self._tell_removed(blocks[fresh:])
        return blocks

    def _check_sharing(self, held: list[int]) -> None:
        extents = {request: self._extents(request) for request in self._tables}
        for request, table in self._tables.items():
            blocks = [block for extent in extents[request] for block in extent.blocks]
            assert blocks == table[: self._published[request]].tolist(), (
                "the extents of a request do not make up its table"
            )
        holders = Counter(extent for each in extents.values() for extent in each)
        assert all(extent.holders == count for extent, count in holders.items()), "holders miscounted"
        shared = sum((count - 1) * len(extent.blocks) for extent, count in holders.items())
        assert shared == self._shared, "shared blocks miscounted"
        idle = list(self._queue)
        assert not any(extent.holders for extent in idle), "an extent is both idle and held"
        assert sum(len(extent.blocks) for extent in idle) == self._queue.num_blocks, "idle blocks miscounted"
        everything = {*holders, *idle}
        found = list(self._index)
        assert set(found) == {extent for extent in everything if extent.found}, "an extent cannot be found"
        assert all(extent.stop - extent.start == len(extent.blocks) > 0 for extent in everything), "an empty extent"
        self._index.check_integrity()
        own = [block for request, table in self._tables.items() for block in table[self._published[request] :]]
        super()._check_sharing(own)


kv_allocators.register("prefix-hash")(PrefixHash)
