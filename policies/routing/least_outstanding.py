"""The replica with the fewest unfinished requests, counting running and waiting ones alike."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("least-outstanding")
class LeastOutstanding(Router):
    """Router that picks the replica with the fewest waiting and running requests, or the lowest index if tied."""

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return min(ready(views), key=lambda i: views[i].num_unread + views[i].num_waiting + views[i].num_running)
