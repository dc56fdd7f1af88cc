"""The replica with the fewest requests that this router has sent there and that have not left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter


@dataclass(frozen=True)
class Params:
    """Parameters of least requests."""

    ties: Literal["index", "random"] = "index"
    """Among equals: the lowest index (sglang-router 0.3.2) or any (llm-d, AIBrix, smg 1.13)."""
    counts: Literal["own", "reported"] = "own"
    """Load: the router's own count of requests in flight, which is exact, or what engines report as waiting and
    running, which may be old."""


@routers.register("least-requests")
class LeastRequests(InFlightRouter):
    """Fewest requests in flight. `least-outstanding` is the same by what replicas report, ties by index."""

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
