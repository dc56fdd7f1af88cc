"""Any replica that is ready, each as likely: what a router does that knows nothing and remembers nothing."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("random")
class Random(Router):
    """Uniform over the replicas that are ready, by keyed draws, as in sglang-router 0.3.2 and smg 1.9.0."""

    blind = True

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(ready(views))
