"""KV beyond the GPU: vLLM's offloading connector (0.19 to 0.33: vllm/distributed/kv_transfer/kv_connector/v1/offloading
and vllm/v1/kv_offload), with one host memory per replica.

1. The KV that a step computes is copied to host memory when the step is done, block by block, each distinct content
   only once. Room is made when the step is planned; if no idle blocks are left to drop, the attempt is repeated with
   the next block.
2. A waiting request that finds more blocks in host memory than on the GPU is given memory and waits outside the queues
   until they are loaded, while others run. If another request is loading the same blocks, it is retried later and finds
   them.
3. Copies in one direction run one after the other, on a separate stream in parallel with the steps. A request that ends
   while it is copied keeps its memory; a preempted request delays the next step until its copies are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from servesim.contracts.connector import DEFER, Connector, Together
from servesim.contracts.place import Counts
from servesim.contracts.request import Request
from servesim.engine import remote_kv
from servesim.engine.clock import LOADED
from servesim.engine.content_keys import ContentKeys, meet
from servesim.features.offload.following import Due, Following
from servesim.features.offload.memory import HostMemory
from servesim.features.offload.tiers import Direction, Tier


class Offload(Connector):
    """vLLM's rules, as described above. `block_tokens`: tokens of a block in host memory, a multiple of the GPU block
    size `gpu_block_tokens`; each GPU block takes `gpu_block_bytes` on each GPU. `told_at_end`: a finished copy is
    noticed only when its request has ended (0.19), not when the copy is done. `shared`: name of the tier if the memory
    is not that of one replica."""

    tier = "host"
    """Where vLLM says that its KV came from (vllm/v1/metrics/cache_hit_source.py); other connectors say nothing."""

    def __init__(
        self,
        memory: HostMemory,
        load: Direction,
        store: Direction,
        *,
        block_tokens: int,
        gpu_block_tokens: int,
        gpu_block_bytes: int,
        told_at_end: bool = False,
        shared: str = "",
    ) -> None:
        self.memory, self.loading, self.storing = memory, load, store
        self._tier = Tier(shared or "cpu", memory, load, store, shared=bool(shared), networked=bool(shared))
        self.tiers = [self._tier]
        self.block_tokens, self._gpu_tokens, self._gpu_bytes = block_tokens, gpu_block_tokens, gpu_block_bytes
        self._told_at_end = told_at_end
        self.counts = Counts()
        self.keys = ContentKeys(block_tokens)
        self._next: dict[Request, int] = {}  # first block not stored yet
        self._copied_ns: dict[Request, int] = {}  # end of its last copy
        self._loads: deque[tuple[int, Sequence[Hashable]]] = deque()  # ends, in order, and blocks
        self._touched: tuple[Request | None, int] = (None, 0)  # the last request looked up, and its blocks
        self._together: Together | None = None  # requests of which `ran` is not told
        self._following: Following  # set with them

    def join(self, replica: Any) -> None:
        self._now: Callable[[], int] = lambda: replica.clock.ns
        self._replica, self._core = replica, replica.core

    def available(self, request: Request, num_tokens: int) -> int:
        size, now = self.block_tokens, self._now()
        known = request.num_tokens // size
        keys = self._blocks_of(request, known)
        if self._touched != (request, known):
            self.memory.touch(keys, now, known)
            self._touched = (request, known)
        first = num_tokens // size
        found = self.memory.find(keys[first:known], now)
        tokens = (first + found) * size - num_tokens
        if not found or tokens < size:
            return 0
        self._arrived(now)
        if self._loads:
            wanted = keys[first : first + found]
            if any(meet(wanted, keys) for _, keys in self._loads):
                self.counts.deferred += 1
                return DEFER
        return tokens

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        size = self.block_tokens
        first, last = start // size, -(-stop // size)
        keys = self._blocks_of(request, last)[first:last]
        end_ns = self.loading.copy((stop - start) // self._gpu_tokens * self._gpu_bytes, now)
        self.memory.read(keys, end_ns)
        self._loads.append((end_ns, keys))
        self._next[request] = last
        self.counts.load_ns.append(end_ns - now)
        self.counts.loaded(request, stop - start, self._tier.name)
        return end_ns

    def _arrived(self, now: int) -> None:
        """Forget loads that are done."""
        while self._loads and self._loads[0][0] <= now:
            self._loads.popleft()

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        now, stored = self._now(), self._next
        self._ran_together(now, end_ns)
        for request in requests:
            known = min(request.num_computed_tokens, request.num_tokens) // self.block_tokens
            if known > stored.get(request, 0):
                self._store(request, known, now, end_ns)
        return end_ns

    def _ran_together(self, now: int, end_ns: int) -> None:
        """Store what the planned step leaves of the requests that decode together, and forget those that have left."""
        for gone in self.keys.gone():
            self.forget(gone)
        if self._together is not None and self._together.due:
            self._following.turn(now, end_ns)

    def follow(self, together: Together | None) -> bool:
        return type(self).ran is Offload.ran and self._follows(together)

    def _follows(self, together: Together | None) -> bool:
        """Follow requests that decode together, if any are counted together; return whether they are."""
        if together is None:
            return False
        self._together = together
        self._following = Following(
            together,
            self.block_tokens,
            self.memory.num_blocks,
            self._next,
            self.counts,
            self._store,
            self._store_all,
        )
        return True

    def turns_apart(self, committed: int, most: int) -> int:
        return min(self._following.next(committed) - committed, most) if self._tier.shared else most

    def ran_turns(self, committed: int, count: int, ends: Sequence[int], depth: int) -> None:
        self._following.run(committed, count, ends, depth)

    def _store(self, request: Request, known: int, now: int, end_ns: int) -> None:
        """Copy the part of a request's first `known` blocks that is neither copied nor stored yet, in a step planned
        now that ends at `end_ns`."""
        memory, counts, first = self.memory, self.counts, self._next.get(request, 0)
        if known - first > memory.num_blocks:
            counts.refused += 1
            return
        keys = self.keys.of(request, known)
        room = memory.store(keys, first, known, now)
        if room is None:
            counts.refused += 1
            return
        self._next[request] = known
        if not room.added:
            return
        self._touched = (None, 0)
        tokens = room.added * self.block_tokens
        done_ns = self.storing.copy(tokens // self._gpu_tokens * self._gpu_bytes, end_ns)
        self._tier.enter(room, done_ns, now)
        if self._told_at_end:
            for block in room.blocks:
                block.writer, block.writer_preemptions = request, request.num_preemptions
        reports = self.tiers[0].reports
        if reports is not None:
            reports.coming(request, keys, room, done_ns)
        counts.stored_tokens += tokens
        counts.dropped_blocks += room.dropped
        self._being_copied(request, done_ns, self._now())

    def _being_copied(self, request: Request, done_ns: int, now: int) -> None:
        self._copied_ns[request] = done_ns
        if done_ns >= now:  # else a turn of a run that is over
            request.being_read += 1
            self._replica.clock.at(done_ns, LOADED, partial(self._copied, request))

    def _store_all(self, stores: list[Due], first: int, ends: Sequence[int], depth: int) -> bool:
        """Copy blocks of turns that are over; see Following."""
        memory, counts = self.memory, self.counts
        if self._tier.shared or self.tiers[0].reports is not None or type(self)._store is not Offload._store:
            return False
        of, now, planned = self.keys.of, self._now(), ends[stores[0][0] - first]
        added = memory.store_each([(of(request, number + 1), number) for _, _, request, number in stores], planned)
        if added is None:
            return False
        blocks, dropped = added
        num_bytes = self.block_tokens // self._gpu_tokens * self._gpu_bytes
        for (turn, _, request, number), block in zip(stores, blocks, strict=True):
            block.ready_ns = done_ns = self.storing.copy(num_bytes, ends[turn - first + depth])
            if self._told_at_end:
                block.writer, block.writer_preemptions = request, request.num_preemptions
            self._next[request] = number + 1
            self._being_copied(request, done_ns, now)
        self._touched = (None, 0)
        self._tier.most = max(self._tier.most, len(memory))
        counts.stored_tokens += len(stores) * self.block_tokens
        counts.dropped_blocks += dropped
        return True

    def _copied(self, request: Request, event: object) -> None:
        if self._replica.core is self._core:  # else its process has crashed since
            remote_kv.read(self._replica, request)

    def preempted(self, requests: Iterable[Request]) -> int:
        return max((self._copied_ns.get(request, 0) for request in requests if request.being_read), default=0)

    def crashed(self) -> None:
        self._tier.crashed(self._now())

    def _blocks_of(self, request: Request, count: int) -> Sequence[Hashable]:
        """Return the identities of at least the first `count` blocks of a request."""
        for gone in self.keys.gone():
            self.forget(gone)
        return self.keys.of(request, count)

    def forget(self, request: Request) -> None:
        """Forget a request that has left."""
        self._next.pop(request, None)
        self._copied_ns.pop(request, None)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert len(self.memory) <= self.memory.num_blocks, "more blocks than fit in host memory"
