"""`hybrid` and `hybrid-paged` in fast mode."""

from __future__ import annotations

from servesim.contracts.kv import Hit, KVMemory, Usage
from servesim.contracts.request import Request
from servesim.engine.fast.memory import stands_for

from ._group_turns import GroupTurns
from .hybrid import Hybrid, HybridPaged, HybridParams


class FastHybrid(Hybrid):
    """`hybrid` in fast mode."""

    def __init__(self, params: HybridParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = GroupTurns(self)

    def lookup(self, request: Request) -> Hit:
        self.turns.look()
        return super().lookup(request)

    def idle_tokens(self, hit: Hit) -> int:
        self.turns.look()
        return super().idle_tokens(hit)

    def slots(self, request: Request) -> int:
        self.turns.look()
        return super().slots(request)

    def usage(self) -> Usage:
        self.turns.look()
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


class FastHybridPaged(HybridPaged):
    """`hybrid-paged` in fast mode."""

    def __init__(self, params: HybridParams, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = GroupTurns(self)

    def slots(self, request: Request) -> int:
        self.turns.look()
        return super().slots(request)

    def usage(self) -> Usage:
        self.turns.look()
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


stands_for(Hybrid, FastHybrid)
stands_for(HybridPaged, FastHybridPaged)
