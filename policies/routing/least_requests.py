"""The replica with the fewest requests that this router has sent to it and that are still in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter


@dataclass(frozen=True)
class Params:
    """Parameters of least-requests."""

    ties: Literal["index", "random"] = "index"
    """Choice among ties: the lowest index (sglang-router 0.3.2) or a random one (llm-d, AIBrix, smg 1.13)."""
    counts: Literal["own", "reported"] = "own"
    """Load measure: the router's own count of requests in flight, which is exact, or the waiting and running requests
    that engines report, which may be stale."""


@routers.register("least-requests")
class LeastRequests(InFlightRouter):
    """Router that picks the replica with the fewest requests in flight. `least-outstanding` does the same with reported
    counts, breaking ties by index."""

    Params = Params

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        if self.params.counts == "own":
            loads = [self.load[i] for i in choices]
        else:
            loads = [views[i].num_unread + views[i].num_waiting + views[i].num_running for i in choices]
        least = min(loads)
        if self.params.ties == "index":
            return choices[loads.index(least)]
        return self.pick([i for i, load in zip(choices, loads, strict=True) if load == least])
