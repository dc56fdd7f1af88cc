"""Routers that keep their own count of requests in flight at each replica."""

from __future__ import annotations

from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, Router


class InFlightRouter(Router):
    """Router that counts requests exactly, from the routing decision to the end of the response."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.load = [0] * num_replicas
        """Requests in flight, by replica."""
        self.processed = [0] * num_replicas
        """Total requests sent, by replica."""

    def on_sent(self, request: Request, replica: int) -> None:
        self.load[replica] += 1
        self.processed[replica] += 1

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self.load[replica] -= 1

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self.load) <= replica:
            self.load.append(0)
            self.processed.append(0)
