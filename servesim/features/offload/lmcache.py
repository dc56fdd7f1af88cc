"""KV beyond the GPU by LMCache (0.3 to 0.4, in the engine's process: lmcache/integration/vllm/vllm_v1_adapter.py and
lmcache/v1/storage_backend), in host memory, on a disk, or in a remote store.

1. When a step has computed the last token of a chunk of a prompt, the step lasts until the chunk is in host memory.
   From there the chunk is written to the slower tiers in parallel with the steps.
2. A waiting request is looked up once, when it first reaches the head of the queue: consecutive chunks from the first,
   each in the fastest tier that has it. The chunks are pinned until the request is admitted; the step that admits it
   begins by loading the chunks that are not completely on the GPU, and chunks of slower tiers enter host memory again.
3. Each tier evicts the chunks that were least recently stored or requested: the start of a prompt before its end while
   the prompt is new, the other way round once it has been requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from servesim.contracts.connector import Connector, Together
from servesim.contracts.place import Counts
from servesim.contracts.request import Request, State
from servesim.engine.content_keys import ContentKeys
from servesim.features.offload.tiers import Tier


class LMCache(Connector):
    """LMCache's rules, as described above. `tiers`: host memory first. `block_tokens`: tokens of a chunk, with
    `token_bytes` per token on each GPU. `save_decode`: store chunks of generated tokens, too. `least`: minimum number
    of tokens to load."""

    in_step = True
    needs = frozenset({"external", "deferred"})
    staged = False

    def __init__(
        self, tiers: Sequence[Tier], *, block_tokens: int, token_bytes: float, save_decode: bool = False, least: int = 0
    ) -> None:
        self.tiers, self.block_tokens = list(tiers), block_tokens
        self._chunk_bytes = round(block_tokens * token_bytes)
        self._save_decode, self._least = save_decode, least
        self.counts = Counts()
        self.keys = ContentKeys(block_tokens)
        self._found: dict[Request, list[Tier]] = {}  # by chunk, of waiting requests already looked up
        self._pinned: Counter[Hashable] = Counter()
        for tier in self.tiers:
            tier.memory.pins.append(self._pinned)
        self._loads: list[tuple[Request, int, int]] = []  # loads that begin the planned step
        self._next: dict[Request, int] = {}  # first chunk not stored yet

    def join(self, replica: Any) -> None:
        self._now: Callable[[], int] = lambda: replica.clock.ns

    def available(self, request: Request, num_tokens: int) -> int:
        found = self._found.get(request)
        if found is None:
            found = self._found[request] = self._look_up(request)
        tokens = len(found) * self.block_tokens - num_tokens
        return tokens if tokens > 0 and tokens >= self._least else 0

    def _look_up(self, request: Request) -> list[Tier]:
        """Return the tier of each chunk that is in any tier, up to the first that is in none, and pin these chunks
        until the request is admitted."""
        now, count = self._now(), request.num_tokens // self.block_tokens
        for given_up in [each for each in self._found if each.state >= State.FINISHED]:
            self._unpin(given_up)
        for gone in self.keys.gone():
            self._next.pop(gone, None)
        keys, found = self.keys.of(request, count)[:count], list[Tier]()
        for key in keys:
            tier = next((tier for tier in self.tiers if tier.memory.find([key], now)), None)
            if tier is None:
                break
            found.append(tier)
        for tier in self.tiers:
            tier.memory.touch([key for key, at in zip(keys, found, strict=False) if at is tier], now)
        self._pinned.update(keys[: len(found)])
        return found

    def _unpin(self, request: Request) -> list[Tier]:
        """Unpin the chunks of a request that was looked up; return their tiers."""
        found = self._found.pop(request, [])
        for key in self.keys.of(request, len(found))[: len(found)]:
            self._pinned[key] -= 1
            if not self._pinned[key]:
                del self._pinned[key]
        return found

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        self._loads.append((request, start, stop))
        return now

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        loading = sum(self._load(*load, begin_ns) for load in self._loads)
        if self._loads:
            self.counts.load_ns.append(loading)
            self._loads.clear()
        end_ns += loading
        for request in requests:
            if request not in self._next:
                self._next[request] = len(self._unpin(request))
            known = min(request.num_computed_tokens, request.num_tokens)
            if not self._save_decode:
                known = min(known, request.prompt_len)
            if known // self.block_tokens > self._next[request]:
                end_ns = self._store(request, known // self.block_tokens, end_ns)
        return end_ns

    def follow(self, together: Together | None) -> bool:
        """Follow requests that decode: they store nothing, unless their chunks are stored, too."""
        return type(self).ran is LMCache.ran and together is not None and not self._save_decode

    def _load(self, request: Request, start: int, stop: int, now: int) -> int:
        """Load tokens `start` to `stop` of a request tier by tier, then to the GPU; return the ns it takes."""
        size = self.block_tokens
        found = self._unpin(request)
        self._next[request] = len(found)
        keys, first, before = self.keys.of(request, len(found)), start // size, now
        for tier in self.tiers[1:]:
            coming = [i for i in range(first, len(found)) if found[i] is tier]
            if coming:
                now = tier.reading.copy(len(coming) * self._chunk_bytes, now)
                self._enter(self.tiers[0], [keys[i] for i in coming], now, request)
        now = self.tiers[0].reading.copy((len(found) - first) * self._chunk_bytes, now)
        for i in range(first, len(found)):
            tokens = min(stop, (i + 1) * size) - max(start, i * size)
            self.counts.loaded(request, tokens, found[i].name)
        return now - before

    def _store(self, request: Request, chunks: int, now: int) -> int:
        """Copy missing chunks among a request's first `chunks` to host memory; return the time at which all are
        there."""
        keys = self.keys.of(request, chunks)[self._next[request] : chunks]
        self._next[request] = chunks
        host, *others = self.tiers
        missing = [key for key in keys if host.memory.get(key) is None]
        copied = host.writing.copy(len(missing) * self._chunk_bytes, now) if missing else now
        if not self._enter(host, missing, copied, request):
            self.counts.refused += 1
            return now
        self.counts.stored_tokens += len(missing) * self.block_tokens
        for tier in others:
            lacking = [key for key in missing if tier.memory.get(key) is None]
            if lacking:
                written = tier.writing.copy(len(lacking) * self._chunk_bytes, copied)
                self._enter(tier, lacking, written, request)
                for key in lacking:  # chunks being written stay
                    block = host.memory.get(key)
                    assert block is not None
                    block.read_until = max(block.read_until, written)
        return copied

    def _enter(self, tier: Tier, keys: Sequence[Hashable], ready_ns: int, request: Request) -> bool:
        """Add chunks of a request that become ready at a given time; return False if there is no room for them."""
        now = self._now()
        room = tier.memory.prepare(keys, now)
        if room is None:
            return False
        tier.enter(room, ready_ns, now)
        if tier.reports is not None:
            tier.reports.coming(request, self.keys.of(request, 0), room, ready_ns)
        self.counts.dropped_blocks += room.dropped
        return True

    def crashed(self) -> None:
        """Handle the end of the process: its own memory, and the index of what is on its disk, go with it. Memory that
        others share stays, without the chunks that were being written."""
        for tier in self.tiers:
            tier.crashed(self._now())
            tier.memory.pins = [each for each in tier.memory.pins if each is not self._pinned]

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert all(len(tier.memory) <= tier.memory.num_blocks for tier in self.tiers), "more chunks than fit"
        assert not self._pinned or self._found, "chunks stay pinned for a request that is not waiting"
