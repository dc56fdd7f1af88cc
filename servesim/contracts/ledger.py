"""Count of the tokens whose KV requests hold, kept in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servesim.contracts.kv import KVAllocator


class Ledger:
    """The only writer of `KVAllocator.held_tokens`, the sum of `num_computed_tokens` over the requests that hold
    memory. Any code that changes a term of that sum must report it here."""

    __slots__ = ("_kv",)

    def __init__(self, kv: KVAllocator) -> None:
        self._kv = kv

    def hold(self, num_tokens: int) -> None:
        """Count tokens whose KV is computed, found in the prefix cache or swapped in."""
        self._kv.held_tokens += num_tokens

    def release(self, num_tokens: int) -> None:
        """Subtract tokens whose KV is freed, moved to the host or discarded."""
        self._kv.held_tokens -= num_tokens
