"""`paged` and `prefix-hash` in fast mode.

A user's allocator that is derived from a plain class is stepped plainly; if it is derived from the fast class instead,
it is fast. In that case, the table of a request in lockstep, and its last blocks in a prefix cache, are entered only
when they are read.
"""

from __future__ import annotations

from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVMemory, Usage
from servesim.contracts.request import Request
from servesim.engine.fast.kv.lockstep_tables import TableTurns
from servesim.engine.fast.kv.publishing import PublishingTurns
from servesim.engine.fast.memory import stands_for
from servesim.policies.kv.paged import Paged
from servesim.policies.kv.prefix_hash import PrefixHash


@mypyc_attr(allow_interpreted_subclasses=True)
class FastPaged(Paged):
    """`paged` in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = TableTurns(self)

    @property
    def tables(self) -> dict[Request, list[int]]:
        """See `BlockTables`."""
        self.turns.complete_all()
        return super().tables

    def slots(self, request: Request) -> int:
        if request._keeper is not None:
            self.turns.look()
            self.turns.complete(request)
        return Paged.slots(self, request)

    def usage(self) -> Usage:
        self.turns.look()
        return Paged.usage(self)

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return Paged.can_admit(self, request, hit, now_tokens, full_tokens, reserve)


@mypyc_attr(allow_interpreted_subclasses=True)
class FastPrefixHash(PrefixHash):
    """`prefix-hash` in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.turns = PublishingTurns(self)

    @property
    def tables(self) -> dict[Request, list[int]]:
        """See `BlockTables`."""
        self.turns.complete_all()
        return super().tables

    def lookup(self, request: Request) -> Hit:
        self.turns.look()
        return super().lookup(request)

    def idle_tokens(self, hit: Hit) -> int:
        self.turns.look()
        return super().idle_tokens(hit)

    def slots(self, request: Request) -> int:
        if request._keeper is not None:
            self.turns.look()
            self.turns.complete(request)
        return super().slots(request)

    def usage(self) -> Usage:
        self.turns.look()
        return super().usage()

    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        self.turns.look()
        return super().can_admit(request, hit, now_tokens, full_tokens, reserve)


stands_for(Paged, FastPaged)
stands_for(PrefixHash, FastPrefixHash)
