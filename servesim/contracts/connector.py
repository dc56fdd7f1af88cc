"""Contract of connectors: sources of KV that was computed remotely (vLLM's KV connectors).

A waiting request whose KV a connector has is given memory immediately and waits outside the scheduler's queues,
whatever runs meanwhile (vLLM's WAITING_FOR_REMOTE_KVS). After the transfer it can be scheduled like a request that
computed those tokens itself; its last known token is always computed locally.

If a connector loads `in_step`, the request is admitted immediately instead, and the step that computes the remaining
tokens begins with the load (vLLM's load_kv_async false, SGLang's HiCache).

A replica with several sources has them all in one connector, `Several` (servesim.engine.several).

A connector may also store KV: it is notified of each step and copies the computed KV from memory that it retains
(`Request.being_read`) until the copy is done, or makes the step end later.

A scenario's `offload` names a connector with its parameters: one of servesim/features/offload, one that a package adds
through the entry-point group `servesim.connector`, or `path/to/file.py:Class`. Each core then gets one of its own. What
outlives an engine, or is used by several, is in `Place.shared`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from servesim.contracts.params import NoParams
from servesim.contracts.place import Counts, Place
from servesim.contracts.request import Request, State
from servesim.plugins.registry import Registry

LATER: Final = 1 << 62
"""Return value of `Connector.load`: the end is not known yet; the replica is notified of it later
(`Replica.loaded`)."""
DEFER: Final = -LATER
"""Return value of `Connector.available`: not known yet. The request waits, and those behind it may be admitted
first."""


class Together(Protocol):
    """Requests that decode together, one token each in every turn (servesim.engine.fast.lockstep)."""

    @property
    def members(self) -> dict[Request, tuple[int, int, int]]:
        """(offset, first turn, turns committed on joining) by request, in batch order: it knows offset + 1 tokens more
        than the number of turns committed, or committed on joining if these are more."""

    @property
    def num_joined(self) -> int:
        """Number of requests that have ever joined; the `_order` of a member is this number at its joining."""

    @property
    def turn(self) -> int:
        """Number of the next turn to be planned."""

    @property
    def committed(self) -> int:
        """Number of turns committed so far."""

    @property
    def due(self) -> int:
        """Number of members in the step that is being planned."""


class Connector(ABC):
    """Source of KV from outside one replica: another replica, host memory, a store. No verb changes anything in a
    request except its `being_read`. Whatever a connector raises ends the run with a PolicyError that names its class
    and line."""

    name: ClassVar[str] = "?"
    Params: ClassVar[type[Any]] = NoParams
    needs: ClassVar[frozenset[str]] = frozenset({"remote_kv", "deferred"})
    """Abilities that a scheduler must have (servesim.contracts.scheduler): "external" for one that loads `in_step`,
    "deferred" for one that answers DEFER."""
    of_engine: ClassVar[str] = "vllm"
    """A scheduler that supports this, to be named if another does not."""
    staged: ClassVar[bool] = True
    """Whether it serves replicas with pipeline stages (pp above 1), too."""
    not_behind: ClassVar[Mapping[str, str]] = {}
    """Roles of pools whose replicas go without it, each with the note that says why."""
    params: Any
    place: Place
    counts: Counts
    """KV that it has moved. A connector counts what it loads (`counts.loaded`) and stores (`counts.stored_tokens`)."""
    tiers: Sequence[Any]
    """Memory that it loads from and stores to (servesim.features.offload.tiers.Tier), for the figures of its size and
    of its links; by default none is told."""
    block_tokens: int = 0
    """Tokens of a block in `tiers`."""
    first: bool = False
    """Whether it is asked before those that were connected earlier, such as that of a handoff."""
    in_step: bool = False
    """Whether KV is loaded within the step that computes the remaining tokens: `load` then returns `now`, and `ran`
    returns the end of the step. It holds for the latest answer of `available`."""
    brings_token: bool = False
    """Whether a load also brings the first token, so that no other connector may load in its place."""

    def __init__(self, params: Any, place: Place) -> None:
        self.params, self.place = params, place
        self.counts = Counts()
        self.tiers = []

    @abstractmethod
    def available(self, request: Request, num_tokens: int) -> int:
        """Return how many tokens of a waiting request, after the first `num_tokens` that are local, have KV available
        elsewhere (0: none), or DEFER. Called by each plan that reaches the request; changes nothing except how recently
        the KV was requested. The context raises PolicyError if the answer exceeds the request's known tokens."""

    @abstractmethod
    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        """Begin to transfer the KV of tokens `start` to `stop`, whose memory is allocated. Return the time in ns at
        which it arrives, not before `now` (else the context raises PolicyError), or LATER."""

    def passed_over(self, request: Request) -> None:  # noqa: B027
        """Handle that another connector of the replica loads a waiting request's KV. Default: do nothing."""

    def join(self, replica: Any) -> None:  # noqa: B027
        """Attach to this Replica; called once, before its first step. Default: do nothing."""

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        """Handle a step that computes tokens of `requests`, up to their `num_computed_tokens`, from `begin_ns` to
        `end_ns`. Return the step's end, loads and stores included, not before `end_ns`. Default: store nothing and wait
        for nothing."""
        return end_ns

    def follow(self, together: Together | None) -> bool:
        """Return whether fast mode may take steps together. `ran` is then not told of requests in `together`, which the
        connector looks up there, nor of steps for which `ran_turns` is called. None: fast mode counts no requests
        together here. Otherwise every step is taken by itself. Default: only if `ran` does nothing."""
        return type(self).ran is Connector.ran

    def turns_apart(self, committed: int, most: int) -> int:
        """Return how many of the next `most` turns nothing outside the replica need know of before they are over; the
        first is planned once `committed` turns are committed. Default: all."""
        return most

    def ran_turns(self, committed: int, count: int, ends: Sequence[int], depth: int) -> None:  # noqa: B027
        """Handle `count` steps of none but the requests that decode together. Step i, from 0, is planned at `ends[i]`,
        when `committed` + i turns are committed, and ends at `ends[i + depth]`. Default: do nothing."""

    def preempted(self, requests: Iterable[Request]) -> int:
        """Return the time in ns before which no step may write to memory that these just-preempted requests held.
        Default: 0, no restriction."""
        return 0

    def crashed(self) -> None:  # noqa: B027
        """Handle the end of the engine's process at this instant: take back from `Place.shared` what this connector had
        not completely written. Default: do nothing."""

    @property
    def networked(self) -> bool:
        """Whether it moves KV over the network. Default: whether any of `tiers` does."""
        return any(tier.networked for tier in self.tiers)

    def network_changed(self, factor: float) -> None:
        """Handle a change of the network's bandwidth at this instant: it is that of an undisturbed one divided by
        `factor`. Default: copies of `tiers` are slower from the next one on; the end of one that has begun is known."""
        for tier in self.tiers:
            if tier.networked:
                tier.reading.factor = tier.writing.factor = factor

    def note(self) -> str:
        """Return a note for the reader of the run on sizes and bandwidths, or an empty string. Default: none."""
        return ""


class Load(NamedTuple):
    """KV being transferred to a request, or arrived but not used yet."""

    start: int
    """Number of tokens that were local before the transfer."""
    stop: int
    """Number of tokens that are local after the transfer."""
    end_ns: int
    state: State
    """State of the request before the transfer."""


connectors: Registry[Connector] = Registry("connector", Connector, "servesim.features.offload.connectors")
