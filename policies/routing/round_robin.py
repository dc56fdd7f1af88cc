"""Each replica in turn, whatever its load: the state-free split that most gateways default to."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, routers


@routers.register("round-robin")
class RoundRobin(Router):
    """The n-th request goes to replica n modulo the number of replicas."""

    blind = True
    _next = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        index = self._next
        self._next = (index + 1) % self.num_replicas
        return index
