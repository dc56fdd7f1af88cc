"""A uniformly random replica: the random policy of most gateways."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("random")
class Random(Router):
    """Router that draws uniformly among the ready replicas."""

    blind = True

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(ready(views))
