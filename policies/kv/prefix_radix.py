"""Prefix caching in a radix tree of token runs (RadixAttention, arXiv 2312.07104; SGLang 0.5.23: srt/mem_cache).

The KV that a request has computed stays in the tree, shared by all requests whose prompts begin with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from servesim.contracts.kv import MISS, Hit, KVAllocator, KVMemory, Usage, kv_allocators
from servesim.contracts.kv_events import BlockRemoved, BlockStored, key_of
from servesim.contracts.request import PrefixIdentity, Request, State

from ._radix import STRATEGIES, Node, RadixTree, tail_optimized


@dataclass(frozen=True)
class PrefixRadixParams:
    """SGLang's settings."""

    page_size: int = 1
    """Tokens per page; some attention kernels require 32 or 64."""
    eviction_policy: str = "lru"
    """Rule that picks the leaf to evict first: lru, lfu, slru, priority, tlru (tail-optimized)."""
    tlru_threshold: int = 0
    """Tokens that the next prompt of a conversation may have to compute; tlru keeps enough of the prefix for this."""
    tlru_next_prompt_estimate: int = 0
    """Tokens that the next prompt is expected to add."""

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError("page_size must be at least 1")
        if self.eviction_policy not in STRATEGIES:
            raise ValueError(f"eviction_policy must be one of {', '.join(STRATEGIES)}, not {self.eviction_policy!r}")
        if min(self.tlru_threshold, self.tlru_next_prompt_estimate) < 0:
            raise ValueError("tlru_threshold and tlru_next_prompt_estimate must be at least 0")
        if self.eviction_policy != "tlru" and (self.tlru_threshold or self.tlru_next_prompt_estimate):
            raise ValueError("tlru_threshold and tlru_next_prompt_estimate require eviction_policy=tlru")


class _Own:
    """Content that no other request has."""

    def __init__(self, row: int) -> None:
        self._base = (row + 1) << 32

    def prefix_key(self, stop: int) -> Hashable:
        return -self._base - stop


@dataclass(slots=True)
class _Holding:
    """Memory that one request holds."""

    node: Node
    """Locked node at which its prefix in the tree ends."""
    own: int
    """Tokens allocated beyond the prefix, in whole pages."""
    entered: int = 0
    """Tokens that the request itself has entered in the tree."""


@kv_allocators.register("prefix-radix")
class PrefixRadix(KVAllocator):
    """Prefix cache in a radix tree. Prompts enter it chunk by chunk and when their prefill is done, outputs when the
    request has finished; a preempted request leaves only what had already been entered. Memory comes from the pool or,
    if that is empty, from the lowest-ranked leaves of the tree."""

    Params = PrefixRadixParams
    params: PrefixRadixParams
    shares = True
    supports = frozenset({"events", "remote_kv"})

    def __init__(self, params: PrefixRadixParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        page = self.block_size = params.page_size
        self.num_blocks = self.capacity_tokens // page
        self.capacity_tokens = self.num_blocks * page
        tail = tail_optimized(params.tlru_threshold, params.tlru_next_prompt_estimate)
        self.tree = RadixTree(page, tail if params.eviction_policy == "tlru" else params.eviction_policy)
        self._pool = self.capacity_tokens  # unallocated tokens
        self._held: dict[Request, _Holding] = {}
        self._own = self._shared = 0  # sums of own and node.end over holdings
        self._prefilling: dict[Request, int] = {}  # length of each prompt not fully in the tree

    def lookup(self, request: Request) -> Hit:
        """Return the longest prefix in the tree, excluding the last token, which is always recomputed."""
        length, node = self.tree.find(_content(request), request.num_tokens - 1, request.salt)
        return Hit(length, (node,)) if length else MISS

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        end = min(max(full_tokens, hit.num_tokens + now_tokens), self.max_model_len)
        free = self._free() - self.idle_tokens(hit) - reserve
        return self._pages(end) - hit.num_tokens <= free

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        node = self.tree.match(_content(request), hit.num_tokens, request.salt)
        if node.end != hit.num_tokens:
            raise ValueError(f"{request}: the cached prefix of {hit.num_tokens} tokens is no longer available")
        self.tree.lock(node)
        self._held[request] = _Holding(node, 0)
        self._shared += node.end
        self._prefilling[request] = request.num_tokens
        self._take(request, min(hit.num_tokens + num_tokens + lookahead, self.max_model_len))

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        if request in self._prefilling and request._num_computed_tokens < self._prefilling[request]:
            self.publish(request, request._num_computed_tokens)  # previous chunk
        end = min(request._num_computed_tokens + num_tokens + lookahead, self.max_model_len)
        if self._short(request, end) > self._free():
            return False
        self._take(request, end)
        return True

    def free(self, request: Request) -> None:
        """Free a request's memory. Also enter the output of a finished request in the tree, but not that of a request
        that will come back."""
        held = self._held[request]
        self._prefilling.pop(request, None)
        if request.state is State.RUNNING and request.content is not None:
            known = min(request.num_computed_tokens, request.num_tokens - 1)  # the last token has no KV
            if known > held.node.end:
                self._enter(request, held, known)
        del self._held[request]
        self._pool += held.own
        self._own -= held.own
        self._shared -= held.node.end
        self.tree.unlock(held.node)

    def publish(self, request: Request, upto: int) -> None:
        """Enter the prompt before `upto` in the tree (for a resumed request, everything it had to recompute)."""
        end = self._prefilling.get(request)
        if end is None:
            return
        held = self._held[request]
        if upto >= end:
            del self._prefilling[request]
        self._enter(request, held, min(upto, end))
        self.tree.touch(held.node)  # SGLang looks up what it just inserted

    def slots(self, request: Request) -> int:
        held = self._held.get(request)
        return held.node.end + held.own if held is not None else 0

    def usage(self) -> Usage:
        filled = self.held_tokens - self._shared  # in the requests' own memory
        return Usage(self.tree.protected + filled, self._own - filled, 0, self._free())

    def idle_tokens(self, hit: Hit) -> int:
        return self.tree.idle_tokens(hit.num_tokens, hit.blocks[0]) if hit.blocks else 0

    def evict(self, num_tokens: int) -> None:
        for node in self.tree.evict(num_tokens):
            self._pool += node.end - node.start
            if self.on_event is not None and not isinstance(node.content, _Own):
                self.on_event(BlockRemoved(self._page_keys(node.content, node.salt, node.start, node.end)))

    def check_integrity(self) -> None:
        super().check_integrity()
        self.tree.check_integrity()
        assert self._own == sum(held.own for held in self._held.values()), "own tokens miscounted"
        assert self._shared == sum(held.node.end for held in self._held.values()), "shared tokens miscounted"
        assert self._pool + self.tree.total + self._own == self.capacity_tokens, "tokens are lost"
        assert self._prefilling.keys() <= self._held.keys(), "a request is in prefill but holds no memory"
        locks = dict.fromkeys(self.tree.nodes(), 0)
        for held in self._held.values():
            for node in held.node.path():
                locks[node] += 1
        assert all(node.locks == count for node, count in locks.items()), "locks do not match the holders"

    def _free(self) -> int:
        return self._pool + self.tree.evictable

    def _pages(self, tokens: int) -> int:
        """Return the size, in tokens, of the pages that hold `tokens` tokens."""
        return -(-tokens // self.block_size) * self.block_size

    def _short(self, request: Request, end: int) -> int:
        """Return the tokens of whole pages that a request lacks up to token `end`; negative if it has more."""
        held = self._held[request]
        return self._pages(end) - held.node.end - held.own

    def _take(self, request: Request, end: int) -> None:
        """Allocate memory for a request up to token `end`."""
        need = self._short(request, end)
        if need <= 0:
            return
        if need > self._pool:
            self.evict(need - self._pool)
        self._pool -= need
        self._held[request].own += need
        self._own += need

    def _enter(self, request: Request, held: _Holding, upto: int) -> None:
        """Enter a request's tokens before `upto` in the tree and lock them. Free its own copy of tokens that other
        requests have entered in the meantime. A request counts as a hit on a node only once, however often it enters
        tokens below that node."""
        before = held.node
        priority = -request.priority  # here low is urgent; in SGLang, high is
        found, node = self.tree.insert(_content(request), upto, request.salt, priority, inserted_len=held.entered)
        held.entered = node.end
        self.tree.lock(node)
        self.tree.unlock(before)
        held.node = node
        held.own -= node.end - before.end
        self._own -= node.end - before.end
        self._shared += node.end - before.end
        self._pool += found - before.end
        if self.on_event is not None and request.content is not None and node.end > found:
            keys = self._page_keys(request.content, request.salt, found, node.end)
            parent = key_of(request.content.prefix_key(found), request.salt) if found else None
            self.on_event(BlockStored(keys, parent, self.block_size, request.content, found))

    def _page_keys(self, content: PrefixIdentity, salt: str, start: int, end: int) -> tuple[Hashable, ...]:
        """Return the keys of the pages from token `start` to token `end`."""
        page = self.block_size
        return tuple(key_of(content.prefix_key(stop), salt) for stop in range(start + page, end + 1, page))


def _content(request: Request) -> PrefixIdentity:
    return request.content if request.content is not None else _Own(request.row)
