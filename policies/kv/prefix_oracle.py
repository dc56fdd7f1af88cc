"""A prefix cache that knows the future: it evicts the block whose next use lies furthest ahead (Belady, 1966).

The yardstick for those that guess. Blocks held by requests are not to be had, so it is not the optimum to the last
token (IBM Systems Journal 5(2), 1966).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any

from servesim.contracts.kv import Hit, KVMemory, kv_allocators
from servesim.contracts.request import Request, State

from ._blockwise import BlockwisePrefix
from ._radix import Node, RadixTree

NEVER = 1 << 62


@kv_allocators.register("prefix-oracle")
class PrefixOracle(BlockwisePrefix):
    """`prefix-hash` in all but what it evicts. A block is next used by the first request not yet admitted whose
    prompt begins with what it holds and all before it; of equals the block deepest in its prompt goes first."""

    needs = frozenset({"future"})

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self._future = RadixTree(self.block_size)  # of all prompts, as far as they may be found
        self._uses: dict[Node, deque[int]] = {}  # rows whose prompts pass a node, in order of arrival
        self._order: dict[int, int] = {}  # row -> place in that order
        self._admitted: set[int] = set()
        self._due: dict[int, tuple[int, int]] = {}  # idle block -> place of its next use, its depth
        self._heap: list[tuple[int, int, int, int]] = []  # with entries of before that changed
        self._entries = 0

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
        table = list(self._tables[request])
        super().free(request)
        again = request.state is State.PREEMPTED
        dues = [self._order.get(request.row, NEVER)] * len(table) if again else self._next_uses(request, len(table))
        for depth, (block, due) in enumerate(zip(table, dues, strict=True)):
            if block in self._idle:
                self._expect(block, due if self.is_cached(block) else NEVER, depth)

    def check_integrity(self) -> None:
        super().check_integrity()
        entries = {(-due, -depth, block) for due, depth, _, block in self._heap}
        assert all((*self._due[block], block) in entries for block in self._idle), "an idle block cannot be evicted"

    def _victims(self, n: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < n:
            due, depth, _, block = heapq.heappop(self._heap)
            if block in self._idle and self._due[block] == (-due, -depth):
                del self._idle[block]
                victims.append(block)
        return victims

    def _expect(self, block: int, due: int, depth: int) -> None:
        """An idle block is next used at a place in the order of arrival."""
        self._due[block] = due, depth
        self._entries += 1
        heapq.heappush(self._heap, (-due, -depth, self._entries, block))

    def _put_off(self, request: Request, hit_blocks: int) -> None:
        """A request that was awaited computes anew what lies behind its hit: blocks there wait for the next one."""
        most = (request.prompt_len - 1) // self.block_size
        keys = list(self._keys(request, hit_blocks, most)) if request.content is not None else []
        stale = []
        for depth, key in enumerate(keys, hit_blocks):
            there = self._cached.get(key, ())
            stale += [(block, depth) for block in ([there] if isinstance(there, int) else there) if block in self._idle]
        if stale:
            dues = self._next_uses(request, most)
            for block, depth in stale:
                self._expect(block, dues[depth], depth)

    def _next_uses(self, request: Request, num_blocks: int) -> list[int]:
        """For each of its first blocks, the place of the first request not yet admitted that shares it."""
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
