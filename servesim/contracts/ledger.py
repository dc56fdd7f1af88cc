"""Counts in one place the tokens whose KV requests hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servesim.contracts.kv import KVAllocator


class Ledger:
    """Writes `KVAllocator.held_tokens`, the sum of `num_computed_tokens` over the requests that hold memory: whatever
    changes a term of that sum says so here, and nothing else writes it."""

    __slots__ = ("_kv",)

    def __init__(self, kv: KVAllocator) -> None:
        self._kv = kv

    def hold(self, num_tokens: int) -> None:
        """Count tokens whose KV is computed, found in the prefix cache or brought back."""
        self._kv.held_tokens += num_tokens

    def release(self, num_tokens: int) -> None:
        """Count tokens whose KV is freed, moved to the host or void."""
        self._kv.held_tokens -= num_tokens
