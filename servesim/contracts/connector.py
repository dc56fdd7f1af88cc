"""Contract of connectors: where KV that was computed elsewhere comes from (vLLM's KV connectors).

A waiting request whose KV a connector has is given memory at once and waits outside of the scheduler's queues,
whatever runs meanwhile (vLLM's WAITING_FOR_REMOTE_KVS). When the transfer is over it can be scheduled like one that has
computed those tokens itself; the last token of all it knows is computed here in any case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from servesim.contracts.request import Request, State

LATER: Final = -1
"""Answer of `Connector.load`: the end is not known yet; the replica is told when it has come (`Replica.loaded`)."""


class Connector(ABC):
    """KV that one replica can have from elsewhere: another replica, host memory, a store."""

    @abstractmethod
    def available(self, request: Request, num_tokens: int) -> int:
        """Return for how many tokens of a waiting request, behind the first `num_tokens` that are here, there is KV
        elsewhere; 0: none. It is asked at each plan that comes to the request, and changes nothing."""

    @abstractmethod
    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        """Begin to transfer the KV of tokens `start` to `stop`, whose memory is allocated; return when it is there, in
        ns, not before `now`; or LATER."""


class Load(NamedTuple):
    """KV on its way to a request, or there and not used yet."""

    start: int
    """Tokens that were here before."""
    stop: int
    """Tokens that are here once it is over."""
    end_ns: int
    state: State
    """State of the request before."""
