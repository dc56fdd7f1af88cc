"""Contract of KV-cache memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, NamedTuple

from mypy_extensions import mypyc_attr

from servesim.contracts.kv_events import KVEvent
from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry
from servesim.plugins.user_policies import settles


class Hit(NamedTuple):
    """Result of a lookup in the prefix cache."""

    num_tokens: int
    """Number of tokens from the start of the request whose KV is cached (less than its num_tokens)."""
    blocks: tuple[Any, ...] = ()
    """Blocks (or tree node) that hold them; meaningful only to their allocator."""


MISS = Hit(0)


class Usage(NamedTuple):
    """Memory in use, in tokens. used + internal + external + free == capacity."""

    used: int
    """Tokens held by running requests, with shared ones counted once."""
    internal: int
    """Tokens allocated to a request but not filled: tails of blocks, reservations, lookahead."""
    external: int
    """Tokens that are free but unusable because of fragmentation."""
    free: int
    """Available tokens, including cached prefixes that may be evicted."""


@dataclass(frozen=True)
class KVMemory:
    """Memory of one replica, which an allocator hands out."""

    num_blocks: int
    """Number of blocks as the engine counts them (in vLLM, including the null block)."""
    block_size: int
    """Tokens per block."""
    max_model_len: int
    """Maximum length of a request, prompt plus output, in tokens."""
    host_blocks: int = 0
    """Number of blocks in host memory for swapping."""
    bytes_per_token: int = 0
    """KV bytes of one token on one GPU of each stage: the bytes moved when the token is copied."""
    windows: tuple[int | None, ...] = (None,)
    """Sliding window in tokens of each group of layers (None: full attention; STATE_WINDOW: a state). Groups have
    separate block tables, whose blocks have the same size in bytes and come from one pool."""
    in_flight_tokens: int = 0
    """Tokens that may be computed, over all steps in flight, before memory behind a window is released (0: all)."""
    overrun_tokens: int = 0
    """Tokens that a request may have computed beyond its last one: drafts, and steps in flight when it ends."""


@mypyc_attr(allow_interpreted_subclasses=True)
class KVAllocator(ABC):
    """The KV memory of one replica, and which request holds which part of it.

    Lengths are in tokens. When a verb is called, a request's `num_computed_tokens` is the number of tokens whose KV is
    filled. Swapping to host memory works with every allocator: a swapped request holds no blocks here, but the same
    number there.

    Questions (`lookup`, `idle_tokens`, `slots`, `usage`, `sharing`, `fits` and all `can_...`) change nothing, raise
    nothing, and may be asked at any time, any number of times; a Hit is valid until a verb is called. Verbs may be
    called only as their docstrings say; otherwise they may raise KeyError or ValueError. Whatever an allocator raises
    ends the run with a PolicyError that names its class and line.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Reference that describes the idea."""
    Params: ClassVar[type[Any]] = NoParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """Oracle knowledge that is needed (by the class, or by one object, depending on its parameters). "output_len": it
    may call `self.output_len(request)`; "future": it receives all requests before the first one arrives (`foresee`)."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """"fork": samples of a request can share its memory. "events": it calls `on_event` for each block of known content
    when the block becomes findable, and when it no longer is (servesim.contracts.kv_events). "remote_kv": the KV with
    which a request in State.LOADING is admitted is not visible to other requests before it is published, which is
    always true of allocators without sharing."""
    output_len: Callable[[Request], int]
    """True output length; set by the engine for declared oracles only."""
    shares: ClassVar[bool] = False
    """Whether `lookup` can ever find anything (a prefix cache that is on)."""
    reserves: ClassVar[bool] = False
    """Whether admission reserves all the memory that a request may need, so that no growth fails."""
    grouped: ClassVar[bool] = False
    """Whether it keeps a block table for each group of layers (KVMemory.windows)."""

    params: Any
    memory: KVMemory
    max_model_len: int
    num_blocks: int
    """Total number of allocation units, unusable ones included."""
    block_size: int
    """Tokens per allocation unit (1: token by token)."""
    capacity_tokens: int
    """Maximum number of tokens that can be held."""
    on_event: Callable[[KVEvent], None] | None
    """Callback, called immediately for the blocks that a prefix cache stores and removes; None for no callback."""

    held_tokens: int = 0
    """Sum of `num_computed_tokens` over the requests that hold memory; written only by the engine's ledger."""
    copied_tokens: int = 0
    """Tokens copied within the GPU's memory (compaction, copy-on-write) so far; the allocator adds to it. The engine
    charges each copy to the step that was being planned at the time."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        self.params = params
        self.memory = memory
        self.num_blocks = memory.num_blocks
        self.block_size = memory.block_size
        self.max_model_len = memory.max_model_len
        self.capacity_tokens = memory.num_blocks * memory.block_size
        self.on_event = None
        self._host: dict[Request, int] = {}  # number of blocks in host memory
        self._host_free = memory.host_blocks

    # Six methods that every allocator implements; the others have defaults.

    @abstractmethod
    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Return whether `now_tokens` beyond the hit can be allocated and `full_tokens` in all would fit too, with
        `reserve` tokens left free in either case. Changes nothing."""

    @abstractmethod
    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        """Adopt the hit and allocate `num_tokens` more, plus slots for `lookahead` drafts. Called only right after
        `can_admit`, or `can_load` for a request in State.LOADING, and only for a request that holds nothing. The caller
        then sets `request.num_computed_tokens` to `hit.num_tokens`. May raise ValueError if the hit is gone."""

    @abstractmethod
    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        """Allocate what `num_tokens` beyond `num_computed_tokens` (and `lookahead` drafts) need. Return False, with
        nothing changed, if out of memory. Growth inside a reservation never fails. Called only for a request that holds
        memory (else KeyError)."""

    @abstractmethod
    def free(self, request: Request) -> None:
        """Release everything the request holds; cached prefixes stay findable. A preempted request may
        find its own KV again when it resumes. Called only for a request that holds memory (else KeyError)."""

    @abstractmethod
    def slots(self, request: Request) -> int:
        """Return how many tokens the request has memory for (0 if it holds none). Changes nothing."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return the memory in use now, in O(1). Changes nothing."""

    # KV from elsewhere.

    def can_load(self, request: Request, hit: Hit, num_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Return whether memory for `num_tokens` of KV from elsewhere, beyond the hit, can be allocated; otherwise as
        in `can_admit`. Default: KV from elsewhere takes the same memory as KV that is computed."""
        return self.can_admit(request, hit, num_tokens, full_tokens, reserve)

    # Sharing of prefixes.

    def lookup(self, request: Request) -> Hit:
        """Return the longest cached prefix of a waiting request (prompt and generated tokens). Changes nothing: a hit
        counts as used, and is held, only once it is adopted. Default: no hit."""
        return MISS

    def idle_tokens(self, hit: Hit) -> int:
        """Return how many tokens of a hit no request holds; `usage().free` counts them until they are adopted. Changes
        nothing. Default: 0, as for any hit without sharing."""
        return 0

    def publish(self, request: Request, upto: int) -> None:
        """Make tokens before `upto` final, so that they may be shared. The engine calls this for every request that
        received tokens in a step, once the step is done. Default: nothing is shared."""
        return None

    def evict(self, num_tokens: int) -> None:
        """Evict at least `num_tokens` tokens of cached prefixes that no request holds, or all of them if there are
        fewer. They count as free before and after. Default: nothing is cached."""
        return None

    def sharing(self) -> tuple[int, int]:
        """Return the number of blocks that requests hold, with a block counted once per holder, and how many of them
        sharing saves. Changes nothing. Default: nothing is shared."""
        return self._blocks(self.usage().used + self.usage().internal), 0

    def foresee(self, requests: Sequence[Request]) -> None:
        """Receive all future requests, in order of arrival; only for allocators that declare needs = {"future"}."""
        return None

    # Swapping works with every allocator without changes.

    def can_swap_out(self, request: Request, samples: Sequence[Request] = ()) -> bool:
        """Return whether host memory has room for the KV of a running request, and of forked samples with it. Changes
        nothing."""
        return self._host_blocks(request, samples) <= self._host_free

    def swap_out(self, request: Request, samples: Sequence[Request] = ()) -> int:
        """Move the KV of a request and of `samples` to host memory, each shared block once. Return the number of tokens
        moved. Call only after `can_swap_out`."""
        blocks = self._host[request] = self._host_blocks(request, samples)
        self._host_free -= blocks
        for sample in samples:
            self._host[sample] = 0
        for each in (request, *samples):
            self.free(each)
        return blocks * self.memory.block_size

    def can_swap_in(self, request: Request, num_tokens: int, reserve: int, samples: Sequence[Request] = ()) -> bool:
        """Return whether a swapped request (with the samples that were swapped out with it) can be swapped in and get
        `num_tokens` more, with `reserve` tokens left free. Changes nothing. `samples`: only if "fork" is supported."""
        return self.can_admit(request, MISS, request.num_computed_tokens + num_tokens, 0, reserve)

    def swap_in(self, request: Request, num_tokens: int, lookahead: int, samples: Sequence[Request] = ()) -> int:
        """Bring the KV of a swapped request (and of its samples) back, with memory for `num_tokens` more for each.
        Return the number of tokens moved. Call only after `can_swap_in`."""
        self.admit(request, MISS, request.num_computed_tokens + num_tokens, lookahead)
        return self.drop_swapped(request) * self.memory.block_size

    def drop_swapped(self, request: Request) -> int:
        """Forget a request's KV in host memory; return how many blocks it had there. Raise KeyError if none."""
        blocks = self._host.pop(request)
        self._host_free += blocks
        return blocks

    def _host_blocks(self, request: Request, samples: Sequence[Request] = ()) -> int:
        return -(-request.num_computed_tokens // self.memory.block_size)

    # Forking: samples of a request that share its memory.

    def can_fork(self) -> bool:
        """Return whether samples can share memory with the given parameters. Changes nothing; the answer is always the
        same. Default: whether `supports` contains "fork"."""
        return "fork" in self.supports

    def fork(self, request: Request, sample: Request) -> None:
        """Make `sample` hold what `request` has computed, in the same memory until one of them writes there. Never runs
        out of memory. Raise NotImplementedError unless `can_fork`."""
        raise NotImplementedError(f"{self.name}: samples of a request cannot share its memory")

    # Limits, rejected drafts, checks.

    def fits(self, request: Request) -> bool:
        """Return whether a request, alone in memory, could ever reach its length cap; the engine rejects it if not.
        Changes nothing, and does not depend on what is held now."""
        return request.prompt_len + request.max_tokens <= self.capacity_tokens

    def rollback(self, request: Request, num_tokens: int) -> None:
        """Void the last `num_tokens` tokens (rejected drafts), which are not final yet. Default: their slots stay."""
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken. Changes nothing; called after steps with `check`."""
        usage = self.usage()
        assert min(usage) >= 0, f"negative memory: {usage}"
        assert sum(usage) == self.capacity_tokens, f"{usage} do not add up to {self.capacity_tokens}"
        assert self._host_free + sum(self._host.values()) == self.memory.host_blocks, "host blocks miscounted"
        assert self._host_free >= 0, "host memory contains more than its capacity"

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


def _usage(four: Any) -> Any:
    kind: type = type(four)  # a variable: tested inline, a compiled build would assume that all four are ints already
    return four if kind is Usage and type(sum(four)) is int else Usage(*map(index, four))


settles("Usage", _usage, "a Usage of ints")
kv_allocators: Registry[KVAllocator] = Registry("kv", KVAllocator, "servesim.policies.kv")
