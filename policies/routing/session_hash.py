"""All requests of a conversation to one replica, by a hash of its name, so that they find what it has cached."""

from __future__ import annotations

from collections.abc import Sequence

from servesim import draws
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("session-hash")
class SessionHash(Router):
    """A hash of the session's name modulo the number of those ready; of the request's own where it belongs to none."""

    blind = True

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        return choices[draws.key(0, f"route {request.session or request.name}") % len(choices)]
