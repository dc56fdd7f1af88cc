"""A prefix cache with perfect foresight: it evicts the block whose next use is furthest in the future (Belady, 1966).

It is a yardstick for realistic caches. Blocks held by requests cannot be evicted, so it is not strictly optimal (IBM
Systems Journal 5(2), 1966).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from servesim.contracts.kv import Hit, KVMemory, kv_allocators
from servesim.contracts.request import Request, State
from servesim.sentinels import NEVER

from ._radix import Node, RadixTree
from .evicting import CachedBlock, Evicting


@kv_allocators.register("prefix-oracle")
class PrefixOracle(Evicting):
    """Prefix cache like `prefix-hash` except for the choice of victims. A block's next use is by the first request not
    yet admitted whose prompt begins with everything up to that block's end; among equals, the block deepest in its
    prompt is evicted first."""

    needs = frozenset({"future"})

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._future = RadixTree(self.block_size)  # tree of the findable parts of all prompts
        self._uses: dict[Node, deque[int]] = {}  # rows whose prompts pass through a node, in arrival order
        self._order: dict[int, int] = {}  # row -> arrival position
        self._admitted: set[int] = set()
        self._due: dict[int, int] = {}  # block -> position of its next use, for blocks that were idle

    def foresee(self, requests: Sequence[Request]) -> None:
        served = [r for r in requests if r.prompt_len + r.max_tokens <= self.max_model_len and self.fits(r)]
        self._order = {request.row: place for place, request in enumerate(served)}
        prompts = [(r, r.content, r.prompt_len - 1) for r in served if r.content is not None]
        for request, content, length in prompts:
            self._future.insert(content, length, request.salt)
        for request, content, length in prompts:
            for node in self._future.find(content, length, request.salt)[1].path():
                self._uses.setdefault(node, deque()).append(request.row)

    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        self._admitted.add(request.row)
        super().admit(request, hit, num_tokens, lookahead)
        self._put_off(request, len(hit.blocks))

    def free(self, request: Request) -> None:
        table, again = self._tables[request].tolist(), request.state is State.PREEMPTED
        dues = [self._order.get(request.row, NEVER)] * len(table) if again else self._next_uses(request, len(table))
        self._due.update(zip(table, dues, strict=True))
        super().free(request)

    def rank(self, block: CachedBlock) -> tuple[int, int]:
        return -self._due[block.block] if self.is_cached(block.block) else -NEVER, -block.depth

    def _put_off(self, request: Request, hit_blocks: int) -> None:
        """Postpone the next use of idle blocks beyond an admitted request's hit: the request recomputes them, so the
        next use is by a later request."""
        most = (request.prompt_len - 1) // self.block_size
        keys = list(self._keys(request, hit_blocks, most)) if request.content is not None else []
        stale = []
        for depth, key in enumerate(keys, hit_blocks):
            there = self._cached.get(key, ())
            stale += [(block, depth) for block in ([there] if isinstance(there, int) else there) if block in self._idle]
        if stale:
            dues = self._next_uses(request, most)
            for block, depth in stale:
                self._due[block] = dues[depth]
                self.rank_again(block)

    def _next_uses(self, request: Request, num_blocks: int) -> list[int]:
        """Return, for each of the first blocks of a request, the position of the first request not yet admitted that
        shares it."""
        dues = [NEVER] * num_blocks
        if request.content is None:
            return dues
        known = min(request.num_tokens, num_blocks * self.block_size)
        length, node = self._future.find(request.content, known, request.salt)
        for each in node.path():
            uses = self._uses[each]
            while uses and uses[0] in self._admitted:
                uses.popleft()
            if uses:
                first, last = each.start // self.block_size, min(each.end, length) // self.block_size
                dues[first:last] = [self._order[uses[0]]] * (last - first)
        return dues
