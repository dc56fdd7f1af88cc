"""Paged KV memory with hash-chained prefix caching: freed full blocks stay findable by content (vLLM 0.33).

Until they are needed for something else (vllm/v1/core/block_pool.py, kv_cache_manager.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mypy_extensions import mypyc_attr
from numpy.typing import NDArray

from servesim.contracts.kv import Hit, KVMemory, kv_allocators
from servesim.engine.content import RunContent
from servesim.engine.request import Request, State

from .paged import Paged


@mypyc_attr(native_class=False)  # pydantic reads its fields
@dataclass(frozen=True)
class PrefixHashParams:
    """Variants of vLLM's prefix cache."""

    hash_lookahead_tokens: int = 0
    """A block's hash covers this many tokens after it too (EAGLE/MTP without a KV connector: 1)."""
    eagle_block_drop: bool = False
    """A hit drops one more trailing block (EAGLE/MTP with a connector, and older releases)."""
    free_order: str = "front"
    """Where freed blocks without a hash go: "front" (0.33) or "back" (older V1 releases)."""

    def __post_init__(self) -> None:
        if self.free_order not in ("front", "back"):
            raise ValueError(f'free_order is "front" or "back", not "{self.free_order}"')


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixHash(Paged):
    """The free queue is two parts: fresh blocks without a hash, handed out first and reused last-in
    first-out, then cached blocks, least recently freed first. Allocating a cached block evicts it. Content
    that the trace does not tell is shared with nobody, and entered only when its request may come back."""

    Params = PrefixHashParams
    shares = True

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._key_of: list[Hashable] = [None] * self.num_blocks  # None: not cached
        # key -> blocks with that content, first inserted first; one block alone is stored bare.
        self._cached: dict[Hashable, int | dict[int, None]] = {}
        self._published: dict[Request, int] = {}  # blocks of its table offered for sharing so far
        # Requests in lockstep whose content others may ask for, and their offsets, by the number of steps committed
        # (modulo the block size) when all tokens of a block are known.
        self._filling: list[dict[Request, int]] = [{} for _ in range(self.block_size)]
        self._committed = 0  # when the last step was planned
        if params.hash_lookahead_tokens:  # what a block is known by would depend on the sample that goes on from it
            self.supports = frozenset()

    def num_free_blocks(self) -> int:
        return len(self._fresh) + len(self._idle)

    def free_order(self) -> list[int]:
        return self._fresh[::-1] + list(self._idle)

    def lookup(self, request: Request) -> Hit:
        """Longest run of cached blocks from the start, short of the last token: it is always recomputed."""
        known = request.num_tokens
        most = min(known - 1, known - self.params.hash_lookahead_tokens) // self.block_size
        cached = self._cached
        blocks = []
        for key in self._keys(request, 0, most):
            found = cached.get(key)
            if found is None:
                break
            blocks.append(found if isinstance(found, int) else next(iter(found)))
        if self.params.eagle_block_drop and blocks:
            blocks.pop()
        return Hit(len(blocks) * self.block_size, tuple(blocks))

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        super().admit(request, hit, num_tokens, lookahead)
        self._published[request] = len(hit.blocks)
        self.publish(request, min(hit.num_tokens + num_tokens, request.num_tokens))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        if not super().grow(request, num_tokens, lookahead):
            return False
        self.publish(request, min(request.num_computed_tokens + num_tokens, request.num_tokens))
        return True

    def grow_run(self, requests: Sequence[Request], k: int) -> list[tuple[int, int]]:
        grown = super().grow_run(requests, k)
        for request in requests:
            known = request.num_tokens + k
            self._offer(request, min(request.num_computed_tokens + k, known), known)
        return grown

    def keeps_lockstep(self) -> bool:
        return type(self) is PrefixHash and not self.params.hash_lookahead_tokens

    def join(self, request: Request, offset: int) -> bool:
        if not super().join(request, offset):
            return False
        if request.content is not None:
            self._filling[(-offset - 1) % self.block_size][request] = offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        super().leave(request, offset)
        self._filling[(-offset - 1) % self.block_size].pop(request, None)
        self._offer_known(request, offset)

    def extend(self, step: int, committed: int) -> bool:
        if not super().extend(step, committed):
            return False
        self._committed = committed
        for request, offset in self._filling[committed % self.block_size].items():
            self._offer_known(request, offset)
        return True

    def extend_run(self, step: int, committed: int, k: int) -> list[tuple[int, int]]:
        grown = super().extend_run(step, committed, k)
        self._committed = last = committed + k - 1
        for before in range(min(k, self.block_size)):
            for request, offset in self._filling[(last - before) % self.block_size].items():
                self._offer_known(request, offset)
        return grown

    def _offer_known(self, request: Request, offset: int) -> None:
        """What a request in lockstep knew when the last step was planned is final."""
        known = self._committed + offset + 1
        self._offer(request, known, known)

    def grow_rounds(
        self, requests: Sequence[Request], ends: NDArray[np.int64], delivered: Sequence[int]
    ) -> list[tuple[int, int]]:
        grown = super().grow_rounds(requests, ends, delivered)
        for request, tokens in zip(requests, delivered, strict=True):
            self._offer(request, request.num_tokens + tokens, request.num_tokens + tokens)
        return grown

    def publish(self, request: Request, upto: int) -> None:
        """Enter the full blocks before `upto` into the cache."""
        self._offer(request, upto, request.num_tokens)

    def _offer(self, request: Request, upto: int, known: int) -> None:
        done = self._published[request]
        if upto < (done + 1) * self.block_size:
            return
        full = min(upto, known - self.params.hash_lookahead_tokens) // self.block_size
        if full <= done:
            return
        if request.content is not None:  # else nobody but itself can look for it: see free
            self._enter(request, done, full)
        self._published[request] = full

    def free(self, request: Request) -> None:
        """Last block first. Of those nobody holds any more the cached ones, which come first in a table, go to
        the back of the queue, the others to the front as a group (or to the back, as in older releases)."""
        if request.content is None and request.state is State.PREEMPTED:
            self._enter(request, 0, self._published[request])
        table = self.tables.pop(request)
        self._table_blocks -= len(table)
        cached = self._published.pop(request)
        if self.params.free_order == "back":
            cached = len(table)
        fresh = table[cached:]
        del table[cached:]
        table.reverse()
        if self._extra:
            extra, still_held = self._extra, self._still_held
            fresh = [block for block in fresh if block not in extra or not still_held(block)]
            table = [block for block in table if block not in extra or not still_held(block)]
        self._fresh += fresh
        self._idle.update(dict.fromkeys(table))

    def fork(self, request: Request, sample: Request) -> None:
        super().fork(request, sample)
        self._published[sample] = self._published[request]

    def _restored(self, request: Request) -> None:
        self._published[request] = 0

    def idle_tokens(self, hit: Hit) -> int:
        return self.block_size * sum(1 for block in hit.blocks if block in self._idle)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; refused (False) while any block is held."""
        if self.num_free_blocks() != self.num_blocks - 1:
            return False
        self._fresh = self.free_order()[::-1]
        self._idle.clear()
        self._cached.clear()
        self._key_of = [None] * self.num_blocks
        return True

    def num_cached_hashes(self) -> int:
        """Distinct block contents that can be hit."""
        return len(self._cached)

    def is_cached(self, block: int) -> bool:
        """Whether a block can be hit by its content."""
        return self._key_of[block] is not None

    def refs(self, block: int) -> int:
        """How many requests hold a block."""
        if block in self._idle or block in self._fresh:
            return 0
        return 1 + self._extra.get(block, 0)

    def _enter(self, request: Request, start: int, stop: int) -> None:
        """Make blocks start to stop of a request's table findable by their content."""
        blocks, keys = self.tables[request][start:stop], self._keys(request, start, stop)
        if not self._cached.keys().isdisjoint(keys):
            self._register(zip(blocks, keys, strict=True))
            return
        self._cached.update(zip(keys, blocks, strict=True))
        key_of = self._key_of
        for block, key in zip(blocks, keys, strict=True):
            key_of[block] = key

    def _register(self, blocks: Iterable[tuple[int, Hashable]]) -> None:
        """Make blocks findable, each by its key."""
        cached, key_of = self._cached, self._key_of
        for block, key in blocks:
            key_of[block] = key
            there = cached.setdefault(key, block)
            if there != block:  # another block with this content was first
                if isinstance(there, int):
                    there = cached[key] = {there: None}
                there[block] = None

    def _keys(self, request: Request, start: int, stop: int) -> Sequence[Hashable]:
        """For blocks start to stop, the identity of everything up to the block's end: the chained hash."""
        size = self.block_size
        ends = range((start + 1) * size + self.params.hash_lookahead_tokens, stop * size + size, size)
        content = request.content
        if content is None:  # shares with nobody but itself
            base = (request.row + 1) << 32
            return range(-base - ends.start, -base - ends.stop, -size)
        keys = content.prefix_keys(ends) if isinstance(content, RunContent) else [content.prefix_key(e) for e in ends]
        return [(request.salt, key) for key in keys] if request.salt else keys

    def _adopt(self, table: list[int], hit: Hit) -> None:
        for block in hit.blocks:
            if block in self._idle:
                del self._idle[block]
            else:
                self._extra[block] = self._extra.get(block, 0) + 1
        table.extend(hit.blocks)
        self._table_blocks += len(hit.blocks)

    def _take(self, table: list[int], n: int) -> None:
        fresh = min(n, len(self._fresh))
        if fresh:
            super()._take(table, fresh)
        if n > fresh:
            victims = self._victims(n - fresh)
            key_of, cached = self._key_of, self._cached
            for block in victims:
                key = key_of[block]
                if key is None:
                    continue
                if cached[key] != block:  # others with this content stay
                    self._evict(block)
                    continue
                key_of[block] = None
                del cached[key]
            table += victims
            self._table_blocks += len(victims)

    def _victims(self, n: int) -> list[int]:
        """Take the n idle blocks that are given up first: the least recently freed ones."""
        idle = self._idle
        return [idle.popitem(last=False)[0] for _ in range(n)]

    def _evict(self, block: int) -> None:
        key = self._key_of[block]
        self._key_of[block] = None
        there = self._cached.pop(key)
        if not isinstance(there, int):
            del there[block]
            if there:  # the others with this content stay, in their order
                self._cached[key] = there

    def _check_sharing(self, held: list[int]) -> None:
        super()._check_sharing(held)
        assert not self._idle.keys() & set(held), "a block is idle and held"
        assert not any(self.is_cached(b) for b in self._fresh), "a cached block is among the fresh ones"
        for key, there in self._cached.items():
            for block in [there] if isinstance(there, int) else list(there):
                assert self._key_of[block] == key, f"block {block} is cached under a key it does not have"
        cached = sum(1 if isinstance(t, int) else len(t) for t in self._cached.values())
        assert cached == self.num_blocks - self._key_of.count(None), "a cached block cannot be found"


kv_allocators.register("prefix-hash")(PrefixHash)
