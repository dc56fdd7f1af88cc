"""Paged KV memory with hash-chained prefix caching: full blocks stay findable by content after they are
freed, until they are needed for something else (vLLM 0.33: vllm/v1/core/block_pool.py, kv_cache_manager.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv import Hit, kv_allocators
from servesim.engine.request import Request

from .paged import Paged


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


@kv_allocators.register("prefix-hash")
class PrefixHash(Paged):
    """The free queue is two parts: fresh blocks without a hash, handed out first and reused last-in
    first-out, then cached blocks, least recently freed first. Allocating a cached block evicts it."""

    Params = PrefixHashParams
    params: PrefixHashParams
    shares = True

    def __init__(self, params: Any, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(params, num_blocks, block_size, max_model_len)
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._key_of: list[Hashable] = [None] * num_blocks  # None: not cached
        # key -> blocks with that content, first inserted first; one block alone is stored bare.
        self._cached: dict[Hashable, int | dict[int, None]] = {}
        self._published: dict[Request, int] = {}  # blocks of its table offered for sharing so far

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

    def publish(self, request: Request, upto: int) -> None:
        """Enter the full blocks before `upto` into the cache."""
        done = self._published[request]
        if upto < (done + 1) * self.block_size:
            return
        full = min(upto, request.num_tokens - self.params.hash_lookahead_tokens) // self.block_size
        if full <= done:
            return
        cached, key_of = self._cached, self._key_of
        for block, key in zip(self.tables[request][done:full], self._keys(request, done, full), strict=True):
            key_of[block] = key
            there = cached.setdefault(key, block)
            if there != block:  # another block with this content was first
                if isinstance(there, int):
                    there = cached[key] = {there: None}
                there[block] = None
        self._published[request] = full

    def free(self, request: Request) -> None:
        super().free(request)
        del self._published[request]

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
        return self._refs[block]

    def _keys(self, request: Request, start: int, stop: int) -> Iterator[Hashable]:
        """For blocks start to stop, the identity of everything up to the block's end: the chained hash."""
        size = self.block_size
        ends = range((start + 1) * size + self.params.hash_lookahead_tokens, stop * size + size, size)
        content = request.content
        if content is None:  # shares with nobody but itself
            base = (request.row + 1) << 32
            return iter(range(-base - ends.start, -base - ends.stop, -size))
        if request.salt:
            return ((request.salt, content.prefix_key(end)) for end in ends)
        return map(content.prefix_key, ends)

    def _idle_blocks(self, hit: Hit) -> int:
        return sum(1 for b in hit.blocks if self._refs[b] == 0)

    def _adopt(self, table: list[int], hit: Hit) -> None:
        for block in hit.blocks:
            if self._refs[block] == 0:
                del self._idle[block]
            self._refs[block] += 1
        table.extend(hit.blocks)
        self._table_blocks += len(hit.blocks)

    def _take(self, table: list[int], n: int) -> None:
        start = len(table)
        fresh = min(n, len(self._fresh))
        if fresh:
            super()._take(table, fresh)
        if n > fresh:
            pop, key_of, cached = self._idle.popitem, self._key_of, self._cached
            for _ in range(n - fresh):
                block = pop(last=False)[0]
                table.append(block)
                key = key_of[block]
                if key is not None:
                    key_of[block] = None
                    there = cached.pop(key)
                    if not isinstance(there, int):
                        del there[block]
                        if there:  # the others with this content stay, in their order
                            cached[key] = there
            self._table_blocks += n - fresh
        refs = self._refs
        for block in table[start:]:
            refs[block] = 1

    def _release(self, table: list[int]) -> None:
        """Last block first. Those nobody holds any more: cached ones to the back of the queue, the others
        to the front as a group (or to the back too, as older releases did)."""
        front = []
        for block in reversed(table):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._key_of[block] is not None or self.params.free_order == "back":
                self._idle[block] = None
            else:
                front.append(block)
        self._fresh.extend(reversed(front))

    def _check_sharing(self, held: list[int]) -> None:
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._refs, "reference counts do not match the block tables"
        assert not any(self.is_cached(b) for b in self._fresh), "a cached block is among the fresh ones"
        for key, there in self._cached.items():
            for block in [there] if isinstance(there, int) else list(there):
                assert self._key_of[block] == key, f"block {block} is cached under a key it does not have"
        cached = sum(1 if isinstance(t, int) else len(t) for t in self._cached.values())
        assert cached == self.num_blocks - self._key_of.count(None), "a cached block cannot be found"
