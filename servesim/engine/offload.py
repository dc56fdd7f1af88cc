"""KV beyond the GPU: vLLM's offloading connector (0.19 to 0.33: vllm/distributed/kv_transfer/kv_connector/v1/offloading
and vllm/v1/kv_offload), over one host memory a replica.

1. What a step computes is copied to host memory when the step is done, block by block, each content once. Room is made
   when the step is planned; if no idle blocks are left to drop, it is tried again with the next block.
2. A waiting request that finds more there than on the GPU is given memory and waits outside of the queues until it has
   come, while others run. If another one is loading the same blocks it is asked again later: it will find them.
3. Copies of one direction run one after the other, on a stream of their own beside the steps. A request that ends while
   it is copied keeps its memory; one that is preempted holds up the next step until its copies are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from servesim.contracts.connector import DEFER, Connector
from servesim.contracts.kv_events import key_of
from servesim.contracts.request import Request, State
from servesim.engine.clock import LOADED
from servesim.engine.offload_memory import HostMemory

NANO = 1_000_000_000


@dataclass
class Direction:
    """Copies in one direction, one after the other, every GPU its own share at the same time."""

    bytes_per_s: int
    start_ns: int
    free_ns: int = 0
    """When all are done."""
    busy_ns: int = 0
    """Time spent on them."""

    def copy(self, num_bytes: int, after_ns: int) -> int:
        """Begin a copy of `num_bytes` of each GPU at or after a time; return when it is done, in ns."""
        ns = self.start_ns - (-num_bytes * NANO // self.bytes_per_s)
        self.busy_ns += ns
        self.free_ns = max(self.free_ns, after_ns) + ns
        return self.free_ns


@dataclass
class OffloadCounts:
    """Counts of a replica's host memory."""

    first_tokens: dict[int, int] = field(default_factory=dict)
    """Tokens loaded for requests that had not run yet, by row."""
    again_tokens: int = 0
    """Tokens loaded for preempted requests."""
    stored_tokens: int = 0
    dropped_blocks: int = 0
    refused: int = 0
    """Stores that found no room."""
    deferred: int = 0
    """Answers that KV is on its way to another request."""
    most_blocks: int = 0
    load_ns: list[int] = field(default_factory=list)
    """Of each load, from the request to its end."""


class Offload(Connector):
    """The rules above. `block_tokens`: tokens of a block in host memory, a multiple of `gpu_block_tokens`, of which
    each takes `gpu_block_bytes` on each GPU. `told_at_end`: that a copy is done is known only once its request has
    ended (0.19), not when it is done."""

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
    ) -> None:
        self.memory, self.loading, self.storing = memory, load, store
        self.block_tokens, self._gpu_tokens, self._gpu_bytes = block_tokens, gpu_block_tokens, gpu_block_bytes
        self._told_at_end = told_at_end
        self.counts = OffloadCounts()
        self._keys: dict[Request, list[Hashable]] = {}  # of its blocks, from the first
        self._purge_at = 256
        self._next: dict[Request, int] = {}  # first block that it has not stored yet
        self._copied_ns: dict[Request, int] = {}  # when its last copy is done
        self._on_way: dict[Hashable, int] = {}  # blocks that are being loaded, until when
        self._loads: deque[tuple[int, list[Hashable]]] = deque()
        self._touched: tuple[Request | None, int] = (None, 0)  # the last request asked about, and its blocks

    def join(self, replica: Any) -> None:
        self._now: Callable[[], int] = lambda: replica.clock.ns
        self._replica = replica

    def available(self, request: Request, num_tokens: int) -> int:
        size, now = self.block_tokens, self._now()
        known = request.num_tokens // size
        keys = self._keys_of(request, known)
        if self._touched != (request, known):
            self.memory.touch(keys[:known], now)
            self._touched = (request, known)
        first = num_tokens // size
        found = self.memory.find(keys[first:known], now)
        tokens = (first + found) * size - num_tokens
        if not found or tokens < size:
            return 0
        self._arrived(now)
        if self._on_way and any(key in self._on_way for key in keys[first : first + found]):
            self.counts.deferred += 1
            return DEFER
        return tokens

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        size = self.block_tokens
        first, last = start // size, -(-stop // size)
        keys = self._keys_of(request, last)[first:last]
        end_ns = self.loading.copy((stop - start) // self._gpu_tokens * self._gpu_bytes, now)
        for key in keys:
            block = self.memory.get(key)
            assert block is not None
            block.read_until = max(block.read_until, end_ns)
            self._on_way[key] = end_ns
        self._loads.append((end_ns, keys))
        self._next[request] = last
        counts = self.counts
        counts.load_ns.append(end_ns - now)
        if request.num_preemptions:
            counts.again_tokens += stop - start
        else:
            counts.first_tokens[request.row] = counts.first_tokens.get(request.row, 0) + stop - start
        return end_ns

    def _arrived(self, now: int) -> None:
        """Forget loads that are done."""
        while self._loads and self._loads[0][0] <= now:
            end_ns, keys = self._loads.popleft()
            for key in keys:
                if self._on_way.get(key) == end_ns:
                    del self._on_way[key]

    def ran(self, requests: Iterable[Request], end_ns: int) -> None:
        for request in requests:
            known = min(request.num_computed_tokens, request.num_tokens) // self.block_tokens
            if known > self._next.get(request, 0):
                self._store(request, known, end_ns)

    def _store(self, request: Request, known: int, end_ns: int) -> None:
        """Copy a request's first `known` blocks, as far as they have not been and are not there, from `end_ns` on."""
        memory, counts, now = self.memory, self.counts, self._now()
        keys = self._keys_of(request, known)
        room = memory.prepare(keys[self._next.get(request, 0) : known], now)
        if room is None:
            counts.refused += 1
            return
        self._next[request] = known
        if not room.keys:
            return
        memory.touch(keys[:known], now)
        self._touched = (None, 0)
        tokens = len(room.keys) * self.block_tokens
        done_ns = self.storing.copy(tokens // self._gpu_tokens * self._gpu_bytes, end_ns)
        for block in room.blocks:
            block.ready_ns = done_ns
            if self._told_at_end:
                block.writer, block.writer_preemptions = request, request.num_preemptions
        counts.stored_tokens += tokens
        counts.dropped_blocks += room.dropped
        counts.most_blocks = max(counts.most_blocks, len(memory))
        request.being_read += 1
        self._copied_ns[request] = done_ns
        self._replica.clock.at(done_ns, LOADED, partial(self._copied, request))

    def _copied(self, request: Request, event: object) -> None:
        self._replica.read(request)

    def preempted(self, requests: Iterable[Request]) -> int:
        return max((self._copied_ns.get(request, 0) for request in requests if request.being_read), default=0)

    def _keys_of(self, request: Request, count: int) -> list[Hashable]:
        """Return the identities of at least the first `count` blocks of a request. Content that the trace does not tell
        is found only by the request itself."""
        if len(self._keys) >= self._purge_at:
            self._forget_gone()
        keys = self._keys.setdefault(request, [])
        size, content = self.block_tokens, request.content
        ends = range((len(keys) + 1) * size, count * size + 1, size)
        if content is None:
            keys += [(-request.row - 1, request.sample, end) for end in ends]
        else:
            keys += [key_of(content.prefix_key(end), request.salt) for end in ends]
        return keys

    def _forget_gone(self) -> None:
        """Forget requests that have left."""
        for request in [request for request in self._keys if request.state >= State.FINISHED]:
            del self._keys[request]
            self._next.pop(request, None)
            self._copied_ns.pop(request, None)
        self._purge_at = 2 * len(self._keys) + 256

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert len(self.memory) <= self.memory.num_blocks, "more blocks than host memory has"
