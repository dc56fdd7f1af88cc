"""Contract of connectors: sources of KV that was computed remotely (vLLM's KV connectors).

A waiting request whose KV a connector has is given memory immediately and waits outside the scheduler's queues,
whatever runs meanwhile (vLLM's WAITING_FOR_REMOTE_KVS). After the transfer it can be scheduled like a request that
computed those tokens itself; its last known token is always computed locally.

If a connector loads `in_step`, the request is admitted immediately instead, and the step that computes the remaining
tokens begins with the load (vLLM's load_kv_async false, SGLang's HiCache).

A replica with several sources has them all in one connector, `Several` (servesim.engine.several).

A connector may also store KV: it is notified of each step and copies the computed KV from memory that it retains
(`Request.being_read`) until the copy is done, or makes the step end later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from servesim.contracts.request import Request, State

LATER: Final = 1 << 62
"""Return value of `Connector.load`: the end is not known yet; the replica is notified of it later
(`Replica.loaded`)."""
DEFER: Final = -LATER
"""Return value of `Connector.available`: not known yet. The request waits, and those behind it may be admitted
first."""


class Connector(ABC):
    """Source of KV from outside one replica: another replica, host memory, a store. No verb changes anything in a
    request except its `being_read`. Whatever a connector raises ends the run with a PolicyError that names its class
    and line."""

    in_step: bool = False
    """Whether KV is loaded within the step that computes the remaining tokens: `load` then returns `now`, and `ran`
    returns the end of the step. It holds for the latest answer of `available`."""
    brings_token: bool = False
    """Whether a load also brings the first token, so that no other connector may load in its place."""

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

    def preempted(self, requests: Iterable[Request]) -> int:
        """Return the time in ns before which no step may write to memory that these just-preempted requests held.
        Default: 0, no restriction."""
        return 0


class Load(NamedTuple):
    """KV being transferred to a request, or arrived but not used yet."""

    start: int
    """Number of tokens that were local before the transfer."""
    stop: int
    """Number of tokens that are local after the transfer."""
    end_ns: int
    state: State
    """State of the request before the transfer."""
