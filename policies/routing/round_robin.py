"""Each replica in turn, regardless of load: the load-independent default of most gateways."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("round-robin")
class RoundRobin(Router):
    """Router that sends the n-th request to replica n modulo the number of ready replicas. A request sent again after
    its replica was lost counts again, as in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17."""

    blind = True
    _sent = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        index = choices[self._sent % len(choices)]
        self._sent += 1
        return index
