"""Contract of KV-cache memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mypy_extensions import mypyc_attr

from servesim.contracts.kv_events import KVEvent
from servesim.contracts.params import NoParams
from servesim.contracts.request import Request
from servesim.plugins.registry import Registry


class Hit(NamedTuple):
    """The result of a lookup in the prefix cache."""

    num_tokens: int
    """Tokens from the start of the request whose KV is there (less than its num_tokens)."""
    blocks: tuple[Any, ...] = ()
    """The blocks (or tree node) that hold them; meaningful to their allocator alone."""


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
class KVMemory:
    """The memory of one replica that an allocator hands out."""

    num_blocks: int
    """Blocks as the engine counts them (vLLM: the null block included)."""
    block_size: int
    """Tokens per block."""
    max_model_len: int
    """Longest request, prompt and output, in tokens."""
    host_blocks: int = 0
    """Blocks of host memory for swapping."""
    bytes_per_token: int = 0
    """KV bytes of one token on one GPU of each stage: what a copy of it moves."""
    windows: tuple[int | None, ...] = (None,)
    """Sliding window in tokens of each group of layers (None: full attention; STATE_WINDOW: a state). Groups hold
    tables of their own, in blocks of equal bytes from one pool."""
    in_flight_tokens: int = 0
    """Tokens that may be computed before memory behind a window is given back: of all steps in flight (0: of a whole
    request)."""
    overrun_tokens: int = 0
    """Tokens a request may have computed beyond its last one: drafts, and steps in flight when it ends."""


@mypyc_attr(allow_interpreted_subclasses=True)
class KVAllocator(ABC):
    """The KV memory of one replica, and which request holds which part of it.

    Lengths are in tokens. Questions (`lookup`, `can_admit`, `fits`, `usage`) change nothing; verbs act. A request's
    `num_computed_tokens` says how far its KV is filled when a verb is called. Swapping to host memory works with every
    allocator: a swapped request holds no blocks here, but the same number there.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Where the idea is described."""
    Params: ClassVar[type[Any]] = NoParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """Oracle knowledge (of the class, or of one object by its parameters). "output_len": it may ask
    `self.output_len(request)`; "future": it is told of all requests before the first one arrives (`foresee`)."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """"fork": samples of a request can share its memory. "events": it calls `on_event` for each block of known
    content when it can be found, and when it no longer can (servesim.contracts.kv_events). "remote_kv": what a request
    in State.LOADING is admitted with is not found by others before it is published; of allocators that share nothing
    this is true anyhow."""
    on_event: Callable[[KVEvent], None] | None
    """Called for the blocks that a prefix cache stores and removes, at once; None: for none."""
    output_len: Callable[[Request], int]
    """True output length; set by the engine for declared oracles only."""
    shares: ClassVar[bool] = False
    """Whether `lookup` may ever find anything (a prefix cache that is on)."""
    reserves: ClassVar[bool] = False
    """Whether admission sets aside all the memory a request may come to need, so that no growth fails."""
    num_blocks: int
    """Allocation units there are, unusable ones included."""
    grouped: ClassVar[bool] = False
    """Whether it keeps a table for each group of layers (KVMemory.windows)."""
    block_size: int
    """Tokens per allocation unit (1: token by token)."""
    capacity_tokens: int
    """Tokens that can be held at most."""

    held_tokens: int = 0
    """Sum of `num_computed_tokens` over the requests that hold memory; written by the engine's ledger alone."""
    copied_tokens: int = 0
    """Tokens copied within the GPU's memory (compaction, copy-on-write) since the engine last looked; it charges
    them to the step being planned."""

    def __init__(self, params: Any, memory: KVMemory) -> None:
        self.params = params
        self.memory = memory
        self.num_blocks = memory.num_blocks
        self.block_size = memory.block_size
        self.max_model_len = memory.max_model_len
        self.capacity_tokens = memory.num_blocks * memory.block_size
        self.on_event = None
        self._host: dict[Request, int] = {}  # blocks in host memory
        self._host_free = memory.host_blocks

    # Six that every allocator has; the others have defaults.

    @abstractmethod
    def can_admit(self, request: Request, hit: Hit, now_tokens: int, full_tokens: int, reserve: int) -> bool:
        """Return whether `now_tokens` beyond the hit can be allocated, and `full_tokens` in all would fit too, with
        `reserve` tokens left free either way."""

    @abstractmethod
    def admit(self, request: Request, hit: Hit, num_tokens: int, lookahead: int) -> None:
        """Adopt the hit and allocate `num_tokens` more, plus slots for `lookahead` drafts. Only after
        `can_admit`. `request.num_computed_tokens` is set to `hit.num_tokens` by the caller, afterwards."""

    @abstractmethod
    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        """Allocate what `num_tokens` beyond `num_computed_tokens` (and `lookahead` drafts) need.
        False: out of memory, nothing taken. Growth inside a reservation never fails."""

    @abstractmethod
    def free(self, request: Request) -> None:
        """Release everything the request holds; cached prefixes stay findable. A request that was preempted
        (`request.state`) may come back for its own."""

    @abstractmethod
    def slots(self, request: Request) -> int:
        """Return how many tokens the request has memory for (0 if it holds none)."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return the memory in use now, in O(1)."""

    # Sharing of prefixes.

    def lookup(self, request: Request) -> Hit:
        """Return the longest cached prefix of a waiting request (prompt and generated tokens). Default: nothing."""
        return MISS

    def idle_tokens(self, hit: Hit) -> int:
        """Return the tokens of a hit that no request holds: `usage().free` counts them until they are adopted. Default:
        none, as for any hit without sharing."""
        return 0

    def publish(self, request: Request, upto: int) -> None:
        """Make tokens before `upto` final, so that they may be shared. The engine calls this for every request that got
        tokens in a step, once the step is done. Default: nothing is shared."""
        return None

    def evict(self, num_tokens: int) -> None:
        """Drop at least `num_tokens` tokens of cached prefixes that no request holds, or all there are. They count as
        free before and after. Default: none are kept."""
        return None

    def sharing(self) -> tuple[int, int]:
        """Return the blocks requests hold, one that several hold counted once per holder, and how many of those sharing
        saves. Default: nothing is shared."""
        return self._blocks(self.usage().used + self.usage().internal), 0

    def foresee(self, requests: Sequence[Request]) -> None:
        """Take note of all requests to come, in order of arrival; only for allocators that declare needs =
        {"future"}."""
        return None

    # Swapping: works with every allocator as it is.

    def can_swap_out(self, request: Request, samples: Sequence[Request] = ()) -> bool:
        """Return whether host memory has room for the KV of a running request, and of forked samples with it."""
        return self._host_blocks(request, samples) <= self._host_free

    def swap_out(self, request: Request, samples: Sequence[Request] = ()) -> int:
        """Move the KV of a request and of `samples` to host memory, shared blocks once; return the tokens moved. Only
        after `can_swap_out`."""
        blocks = self._host[request] = self._host_blocks(request, samples)
        self._host_free -= blocks
        for sample in samples:
            self._host[sample] = 0
        for each in (request, *samples):
            self.free(each)
        return blocks * self.memory.block_size

    def can_swap_in(self, request: Request, num_tokens: int, reserve: int, samples: Sequence[Request] = ()) -> bool:
        """Return whether a swapped request (with the samples that were swapped out with it) can come back and have
        `num_tokens` more, `reserve` tokens left free. `samples`: only where "fork" is supported."""
        return self.can_admit(request, MISS, request.num_computed_tokens + num_tokens, 0, reserve)

    def swap_in(self, request: Request, num_tokens: int, lookahead: int, samples: Sequence[Request] = ()) -> int:
        """Bring the KV of a swapped request back, with memory for `num_tokens` more (each); return the tokens moved.
        Only after `can_swap_in`."""
        self.admit(request, MISS, request.num_computed_tokens + num_tokens, lookahead)
        return self.drop_swapped(request) * self.memory.block_size

    def drop_swapped(self, request: Request) -> int:
        """Forget a request's KV in host memory; return the blocks it had there."""
        blocks = self._host.pop(request)
        self._host_free += blocks
        return blocks

    def _host_blocks(self, request: Request, samples: Sequence[Request] = ()) -> int:
        return -(-request.num_computed_tokens // self.memory.block_size)

    # Forking: samples of a request that share its memory.

    def can_fork(self) -> bool:
        """Return whether samples can share memory, with the parameters given. Default: where `supports` says "fork"."""
        return "fork" in self.supports

    def fork(self, request: Request, sample: Request) -> None:
        """Make `sample` hold what `request` has computed, in the same memory until one of them writes there; never runs
        out of memory. Only for allocators that can."""
        raise NotImplementedError(f"{self.name}: samples of a request cannot share its memory")

    # Limits, drafts that were wrong, checks.

    def fits(self, request: Request) -> bool:
        """Return whether a request alone can ever be held up to its length cap."""
        return request.prompt_len + request.max_tokens <= self.capacity_tokens

    def rollback(self, request: Request, num_tokens: int) -> None:
        """Void the last `num_tokens` tokens (rejected drafts). Default: their slots stay."""
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        usage = self.usage()
        assert min(usage) >= 0, f"negative memory: {usage}"
        assert sum(usage) == self.capacity_tokens, f"{usage} do not add up to {self.capacity_tokens}"
        assert self._host_free + sum(self._host.values()) == self.memory.host_blocks, "host blocks miscounted"
        assert self._host_free >= 0, "more in host memory than it holds"

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


kv_allocators: Registry[KVAllocator] = Registry("kv", KVAllocator, "servesim.policies.kv")
