"""Fast mode for the other allocators, which are not compiled: contiguous, the radix tree, and prefix caches that evict
by rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from servesim.contracts.kv import Hit, KVAllocator, KVMemory, Usage
from servesim.contracts.request import Request
from servesim.engine.fast.kv.growth import blocks_by_round, most_rounds, rounds_until_short
from servesim.engine.fast.kv.publishing import PublishingTurns
from servesim.engine.fast.memory import LockstepMemory, stands_for
from servesim.policies.kv.contiguous import Contiguous, ContiguousParams
from servesim.policies.kv.evicting import Evicting
from servesim.policies.kv.prefix_oracle import PrefixOracle
from servesim.policies.kv.prefix_radix import PrefixRadix, PrefixRadixParams


class Asked(KVAllocator):
    """Mixin for queries whose answers change as requests decode: the queries bring the lockstep counts up to date, and
    the engine detects that they were called. List the mixin before the plain class that implements the queries."""

    turns: LockstepMemory

    def lookup(self, request: Request) -> Hit:
        if self.shares:
            self.turns.look()
        return super().lookup(request)

    def idle_tokens(self, hit: Hit) -> int:
        if self.shares:
            self.turns.look()
        return super().idle_tokens(hit)

    def slots(self, request: Request) -> int:
        self.turns.look()
        self.turns.complete(request)
        return super().slots(request)  # type: ignore[safe-super]

    def usage(self) -> Usage:
        self.turns.look()
        return super().usage()  # type: ignore[safe-super]

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)  # type: ignore[safe-super]

    def can_load(self, request: Request, hit: Hit, num_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return super().can_load(request, hit, num_tokens, full_tokens, reserve)

    def can_swap_in(self, request: Request, num_tokens: int, reserve: int, samples: Sequence[Request] = ()) -> bool:
        self.turns.look()
        return super().can_swap_in(request, num_tokens, reserve, samples)


class ReservedTurns(LockstepMemory):
    """Memory that is fully allocated in advance."""

    def __init__(self, kv: Contiguous) -> None:
        super().__init__()
        self._kv = kv
        self._past: dict[Request, int] = {}  # first turn beyond a member's reservation

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        self._past[request] = self._kv.chunks[request][1] - offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        del self._past[request]

    def extend(self, turn: int, committed: int) -> bool:
        return all(turn < past for past in self._past.values())

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        if reserve > self._kv.usage().free:
            return 0
        return min(limit, min(self._past.values()) - turn)

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        return []

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        for request, known in zip(requests, tokens, strict=True):
            size = self._kv.chunks[request][1]
            if size < self._kv.max_model_len:
                limit = min(limit, bisect_right(known, size - ahead))
        return limit

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        return []


class FastContiguous(Asked, Contiguous):
    """`contiguous` in fast mode."""

    def __init__(self, params: ContiguousParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = ReservedTurns(self)


class RadixTurns(LockstepMemory):
    """Pages that requests own beyond their part of the tree."""

    def __init__(self, kv: PrefixRadix) -> None:
        super().__init__()
        self._kv = kv
        self._offsets: dict[Request, int] = {}

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if request in self._kv._prefilling:
            return False  # a commit will add its prompt to the tree
        self._offsets[request] = offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        del self._offsets[request]

    def _slack(self, turn: int) -> list[int]:
        """Return the number of unused slots of each member before a turn."""
        held = self._kv._held
        return [held[r].node.end + held[r].own - turn - offset for r, offset in self._offsets.items()]

    def extend(self, turn: int, committed: int) -> bool:
        if self.steps_until_full(turn, 1, 0) < 1:
            return False
        self.extend_run(turn, committed, 1)
        return True

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        free, page = self._kv._free() - reserve, self._kv.block_size
        return rounds_until_short(self._slack(turn), page, free // page, limit) if free >= 0 else 0

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        kv, slack = self._kv, self._slack(turn)
        page = kv.block_size
        for request, unused in zip(self._offsets, slack, strict=True):
            kv._held[request].own += -(-max(k - unused, 0) // page) * page
        grown = [(step, pages * page) for step, pages in blocks_by_round(slack, page, k)]
        total = sum(tokens for _, tokens in grown)
        if total > kv._pool:
            kv.evict(total - kv._pool)
        kv._pool -= total
        kv._own += total
        return grown

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        kv = self._kv
        if kv._prefilling and any(request in kv._prefilling for request in requests):
            return 0
        held = [kv.slots(request) for request in requests]

        def needed(k: int) -> int:
            ends = [min(known[k - 1] + ahead, kv.max_model_len) for known in tokens]
            return sum([max(kv._pages(end) - have, 0) for end, have in zip(ends, held, strict=True)])

        return most_rounds(needed, kv._free(), limit)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        kv, grown = self._kv, []
        for i in range(k):
            before = kv._own
            for request, known in zip(requests, tokens, strict=True):
                kv._take(request, min(known[i] + ahead, kv.max_model_len))
            if kv._own > before:
                grown.append((i + 1, kv._own - before))
        return grown


class FastPrefixRadix(Asked, PrefixRadix):
    """`prefix-radix` in fast mode."""

    def __init__(self, params: PrefixRadixParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = RadixTurns(self)


class FastEvicting(Asked, Evicting):
    """`Evicting` in fast mode."""

    turns: PublishingTurns

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = PublishingTurns(self)

    @property
    def tables(self) -> dict[Request, list[int]]:
        """See `BlockTables`."""
        self.turns.complete_all()
        return super().tables


class FastPrefixOracle(PrefixOracle, FastEvicting):
    """`prefix-oracle` in fast mode."""


stands_for(Contiguous, FastContiguous)
stands_for(PrefixRadix, FastPrefixRadix)
stands_for(PrefixOracle, FastPrefixOracle)
