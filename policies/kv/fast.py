"""The allocators in fast mode, each beside its plain class.

A user's allocator that is derived from a plain class is stepped plainly; derived from the fast one instead it is fast.
Then a request in lockstep has its table, and in a prefix cache its last blocks, entered only when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mypy_extensions import mypyc_attr, trait

from servesim.contracts.kv import Hit, KVMemory, Usage
from servesim.contracts.request import Request
from servesim.engine.fast.memory import stands_for

from ._lockstep_tables import LockstepTables
from .paged import Paged
from .prefix_hash import PrefixHash


@mypyc_attr(allow_interpreted_subclasses=True)
class FastPaged(Paged, LockstepTables):
    """`paged` in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.open_ranks()

    @property
    def tables(self) -> dict[Request, list[int]]:
        """See `BlockTables`."""
        self.complete_all()
        return super().tables

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


@trait
@mypyc_attr(allow_interpreted_subclasses=True)
class PublishingTables(LockstepTables):
    """Tables whose full blocks are published as the tokens in them become known."""

    _filling: dict[int, dict[Request, int]]
    """Members whose content others may ask for, and their offsets, by the number of turns committed (modulo the block
    size) when all tokens of a block are known."""
    _committed: int
    """Turns committed when the last one was planned."""

    def _offer(self, request: Request, upto: int, known: int) -> None:
        raise NotImplementedError

    def _joined(self, request: Request, offset: int) -> None:
        if request.content is not None:
            phase = (-offset - 1) % self.block_size
            if phase not in self._filling:
                self._filling[phase] = {}
            self._filling[phase][request] = offset

    def _left(self, request: Request, offset: int) -> None:
        if request.content is not None:
            phase = (-offset - 1) % self.block_size
            del self._filling[phase][request]
            if not self._filling[phase]:
                del self._filling[phase]
        self._offer_known(request, offset)

    def _turned(self, committed: int, k: int) -> None:
        self._committed = committed
        if k == 1:
            if (full := self._filling.get(committed % self.block_size)) is not None:
                for request, offset in full.items():
                    self._offer_known(request, offset)
            return
        for phase, full in self._filling.items():
            if (committed - phase) % self.block_size < k:
                for request, offset in full.items():
                    self._offer_known(request, offset)

    def _offer_known(self, request: Request, offset: int) -> None:
        """Publish what a member knew when the last turn was planned: it is final."""
        self.complete(request)
        known = self._committed + offset + 1
        self._offer(request, known, known)

    def _delivered(self, requests: Sequence[Request], known: list[int]) -> None:
        for request, tokens in zip(requests, known, strict=True):
            self._offer(request, tokens, tokens)


@mypyc_attr(allow_interpreted_subclasses=True)
class FastPrefixHash(PrefixHash, PublishingTables):
    """`prefix-hash` in fast mode."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        super().__init__(params, memory)
        self.open_ranks()
        self._filling, self._committed = {}, 0
        self._ahead = params.hash_lookahead_tokens > 0  # blocks are known by more than they hold

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        return not self._ahead and LockstepTables.join(self, request, offset, num_tokens)

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


stands_for(Paged, FastPaged)
stands_for(PrefixHash, FastPrefixHash)
