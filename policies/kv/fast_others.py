"""Allocators that are not compiled, in fast mode: contiguous reservations, the radix tree, caches
that evict by rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from servesim.contracts.kv import Hit, KVMemory, Usage
from servesim.contracts.request import Request
from servesim.engine.fast.memory import DraftMemory, LockstepMemory, stands_for

from ._growth import blocks_by_round, most_rounds, rounds_until_short
from .contiguous import Contiguous, ContiguousParams
from .evicting import Evicting
from .fast import PublishingTables
from .prefix_oracle import PrefixOracle
from .prefix_radix import PrefixRadix, PrefixRadixParams


class FastContiguous(Contiguous, LockstepMemory, DraftMemory):
    """`contiguous` in fast mode: all memory is there already."""

    def __init__(self, params: ContiguousParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.looked = False
        self._past: dict[Request, int] = {}  # the first turn that a member's reservation has no room for

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        self._past[request] = self.chunks[request][1] - offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        del self._past[request]

    def extend(self, turn: int, committed: int) -> bool:
        return all(turn < past for past in self._past.values())

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        if reserve > super().usage().free:
            return 0
        return min(limit, min(self._past.values()) - turn)

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        return []

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        for request, known in zip(requests, tokens, strict=True):
            size = self.chunks[request][1]
            if size < self.max_model_len:
                limit = min(limit, bisect_right(known, size - ahead))
        return limit

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        return []

    def slots(self, request: Request) -> int:
        self.looked = True
        return super().slots(request)

    def usage(self) -> Usage:
        self.looked = True
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.looked = True
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


class FastPrefixRadix(PrefixRadix, LockstepMemory, DraftMemory):
    """`prefix-radix` in fast mode."""

    def __init__(self, params: PrefixRadixParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.looked = False
        self._offsets: dict[Request, int] = {}

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if request in self._prefilling:
            return False  # a commit will enter its prompt
        self._offsets[request] = offset
        return True

    def leave(self, request: Request, offset: int) -> None:
        del self._offsets[request]

    def _slack(self, turn: int) -> list[int]:
        """Slots of each member that are not used before a turn."""
        held = self._held
        return [held[r].node.end + held[r].own - turn - offset for r, offset in self._offsets.items()]

    def extend(self, turn: int, committed: int) -> bool:
        if self.steps_until_full(turn, 1, 0) < 1:
            return False
        self.extend_run(turn, committed, 1)
        return True

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        free = self._free() - reserve
        if free < 0:
            return 0
        return rounds_until_short(self._slack(turn), self.block_size, free // self.block_size, limit)

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        page, slack = self.block_size, self._slack(turn)
        for request, unused in zip(self._offsets, slack, strict=True):
            self._held[request].own += -(-max(k - unused, 0) // page) * page
        grown = [(step, pages * page) for step, pages in blocks_by_round(slack, page, k)]
        total = sum(tokens for _, tokens in grown)
        if total > self._pool:
            self.evict(total - self._pool)
        self._pool -= total
        self._own += total
        return grown

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        if self._prefilling and any(request in self._prefilling for request in requests):
            return 0
        held = [super(FastPrefixRadix, self).slots(request) for request in requests]

        def needed(k: int) -> int:
            ends = [min(known[k - 1] + ahead, self.max_model_len) for known in tokens]
            return sum([max(self._pages(end) - have, 0) for end, have in zip(ends, held, strict=True)])

        return most_rounds(needed, self._free(), limit)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        grown = []
        for i in range(k):
            before = self._own
            for request, known in zip(requests, tokens, strict=True):
                self._take(request, min(known[i] + ahead, self.max_model_len))
            if self._own > before:
                grown.append((i + 1, self._own - before))
        return grown

    def lookup(self, request: Request) -> Hit:
        self.looked = True
        return super().lookup(request)

    def idle_tokens(self, hit: Hit) -> int:
        self.looked = True
        return super().idle_tokens(hit)

    def slots(self, request: Request) -> int:
        self.looked = True
        return super().slots(request)

    def usage(self) -> Usage:
        self.looked = True
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.looked = True
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


class FastEvicting(Evicting, PublishingTables):
    """`Evicting` in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.open_ranks()
        self._filling, self._committed = {}, 0
        self._ahead = params.hash_lookahead_tokens > 0

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        return not self._ahead and super().join(request, offset, num_tokens)

    @property
    def tables(self) -> dict[Request, list[int]]:
        """See `BlockTables`."""
        self.complete_all()
        return super().tables

    def lookup(self, request: Request) -> Hit:
        self.looked = True
        return super().lookup(request)

    def idle_tokens(self, hit: Hit) -> int:
        self.looked = True
        return super().idle_tokens(hit)

    def slots(self, request: Request) -> int:
        self.looked = True
        self.complete(request)
        return super().slots(request)

    def usage(self) -> Usage:
        self.looked = True
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.looked = True
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


class FastPrefixOracle(PrefixOracle, FastEvicting):
    """`prefix-oracle` in fast mode."""


stands_for(Contiguous, FastContiguous)
stands_for(PrefixRadix, FastPrefixRadix)
stands_for(PrefixOracle, FastPrefixOracle)
