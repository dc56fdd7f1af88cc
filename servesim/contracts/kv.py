"""Contract of KV-cache memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from servesim.contracts.registry import Registry
from servesim.engine.request import Request


class Hit(NamedTuple):
    """What a lookup found in the prefix cache."""

    num_tokens: int
    """Tokens from the start of the request whose KV is there (less than its num_tokens)."""
    blocks: tuple[int, ...] = ()
    """The blocks that hold them; meaningful to their allocator alone."""


MISS = Hit(0)


class Usage(NamedTuple):
    """Memory in use, in tokens. used + internal + external + free == capacity."""

    used: int
    """Token states that running requests hold, shared ones counted once."""
    internal: int
    """Allocated to a request and not filled: tails of blocks, reservations, lookahead."""
    external: int
    """Free but unusable because of fragmentation."""
    free: int
    """Available, cached prefixes that may be evicted included."""


@dataclass(frozen=True)
class NoParams:
    """Parameters of a policy that has none."""


class KVAllocator(ABC):
    """Who holds which KV memory of one replica.

    Lengths are in tokens. Questions (`lookup`, `can_admit`, `fits`, `steps_until_short`, `usage`) change
    nothing; verbs act. A request's `num_computed_tokens` says how far its KV is filled when a verb is called.
    """

    name: ClassVar[str] = "?"
    Params: ClassVar[type[Any]] = NoParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """{"output_len"} marks an oracle."""
    shares: bool = False
    """Whether `lookup` may ever find anything (a prefix cache that is on)."""
    block_size: int
    """Tokens per allocation unit (1: token by token)."""
    capacity_tokens: int
    """Tokens that can be held at most."""

    held_tokens: int = 0
    """Sum of `num_computed_tokens` over the requests that hold memory; kept by the engine."""

    def __init__(self, params: Any, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """`num_blocks` as the engine counts them (vLLM: the null block included)."""
        self.params = params
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.capacity_tokens = num_blocks * block_size

    def fits(self, num_tokens: int) -> bool:
        """Whether a request that ends with `num_tokens` tokens can ever be held, alone."""
        return num_tokens <= self.capacity_tokens

    def lookup(self, request: Request) -> Hit:
        """Longest cached prefix of a waiting request (prompt and generated tokens). Default: nothing."""
        return MISS

    @abstractmethod
    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Whether `now_tokens` beyond the hit can be allocated, and `full_tokens` in all would fit too,
        with `reserve` tokens left free either way."""

    @abstractmethod
    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        """Adopt the hit and allocate `num_tokens` more, plus slots for `lookahead` drafts. Only after
        `can_admit`. `request.num_computed_tokens` is set to `hit.num_tokens` by the caller, afterwards."""

    @abstractmethod
    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        """Allocate what `num_tokens` beyond `num_computed_tokens` (and `lookahead` drafts) need.
        False: out of memory, nothing changed. Growth inside a reservation never fails."""

    @abstractmethod
    def free(self, request: Request) -> None:
        """Release everything the request holds; cached prefixes stay findable. A request that was preempted
        (`request.state`) may come back for its own."""

    @abstractmethod
    def slots(self, request: Request) -> int:
        """Tokens the request has memory for (0 if it holds none)."""

    @abstractmethod
    def usage(self) -> Usage:
        """Memory in use now. O(1)."""

    def steps_until_short(self, requests: Sequence[Request], limit: int) -> int:
        """For how many more steps, at most `limit`, each of `requests` can grow by one token per step
        without any of them failing. Default 0: never fast-forwarded, always right."""
        return 0

    def grow_run(self, requests: Sequence[Request], k: int) -> list[tuple[int, int]]:
        """`grow(request, 1)` for each request in order, k times over, with `num_computed_tokens`
        and `num_tokens` advancing by one each time; the requests' own counters are left to the caller.
        Returns (round from 1, tokens allocated in it) for the rounds that allocated anything, in order: each
        takes as much from `usage().free`, and `external` stays. Called only with
        k <= steps_until_short(...)."""
        raise NotImplementedError(f"{self.name}: steps_until_short promises what grow_run does not keep")

    def rollback(self, request: Request, num_tokens: int) -> None:
        """The last `num_tokens` tokens (rejected drafts) are void. Default: their slots stay."""
        return None

    def publish(self, request: Request, upto: int) -> None:
        """Tokens before `upto` are final; full blocks of them may be shared. Default: nothing is shared."""
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        usage = self.usage()
        assert min(usage) >= 0, f"negative memory: {usage}"
        assert sum(usage) == self.capacity_tokens, f"{usage} do not add up to {self.capacity_tokens}"


kv_allocators: Registry[KVAllocator] = Registry("kv", KVAllocator, "servesim.policies.kv")
