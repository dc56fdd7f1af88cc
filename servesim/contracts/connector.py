"""Contract of connectors: where KV that was computed elsewhere comes from (vLLM's KV connectors).

A waiting request whose KV a connector has is given memory at once and waits outside of the scheduler's queues,
whatever runs meanwhile (vLLM's WAITING_FOR_REMOTE_KVS). When the transfer is over it can be scheduled like one that has
computed those tokens itself; the last token of all it knows is computed here in any case.

Where a connector loads `in_step`, the request is admitted at once instead, and the step that computes its rest begins
by loading (vLLM's load_kv_async false, SGLang's HiCache).

A connector may keep KV too: it is told of each step, and copies what that computes from memory which it has kept
(`Request.being_read`) until the copy is done, or lets the step end later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from servesim.contracts.request import Request, State

LATER: Final = 1 << 62
"""Answer of `Connector.load`: the end is not known yet; the replica is told when it has come (`Replica.loaded`)."""
DEFER: Final = -LATER
"""Answer of `Connector.available`: not known yet; the request waits, and those behind it may go ahead."""


class Connector(ABC):
    """KV that one replica can have from elsewhere: another replica, host memory, a store. No verb changes a request but
    its `being_read`. Whatever a connector raises ends the run with a PolicyError that names its class and line."""

    in_step: bool = False
    """Whether KV is loaded within the step that computes the rest: `load` answers `now`, `ran` when the step ends."""

    @abstractmethod
    def available(self, request: Request, num_tokens: int) -> int:
        """Return for how many tokens of a waiting request, behind the first `num_tokens` that are here, there is KV
        elsewhere; 0: none; or DEFER. It is asked at each plan that comes to the request, and changes nothing but how
        recently KV was asked for. The context raises PolicyError for more tokens than the request knows."""

    @abstractmethod
    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        """Begin to transfer the KV of tokens `start` to `stop`, whose memory is allocated; return when it is there, in
        ns, not before `now` (else the context raises PolicyError); or LATER."""

    def join(self, replica: Any) -> None:  # noqa: B027
        """Serve this Replica; called once, before its first step. Default: nothing to note."""

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        """Called for a step that computes tokens of `requests`, up to their `num_computed_tokens`, from `begin_ns` to
        `end_ns`; return when it ends, loads and stores included, not before `end_ns`. Default: nothing is kept, nor
        waited for."""
        return end_ns

    def preempted(self, requests: Iterable[Request]) -> int:
        """Return the time in ns before which no step may write to memory that these requests, just preempted, held.
        Default: 0, any may."""
        return 0


class Load(NamedTuple):
    """KV on its way to a request, or there and not used yet."""

    start: int
    """Tokens that were here before."""
    stop: int
    """Tokens that are here once it is over."""
    end_ns: int
    state: State
    """State of the request before."""
