"""Routing of a conversation's requests to the replica that its name hashes to, where they hit the same cache.

The hash is taken modulo the number of ready replicas, so n of n + 1 sessions move when one more comes to n: 80 % for a
fifth one, whose caches are then cold for them. With `consistent-hash` only those move that the new replica gets (20 %).
"""

from __future__ import annotations

from collections.abc import Sequence

from servesim import draws
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@routers.register("session-hash")
class SessionHash(Router):
    """Router that picks a replica by the hash of the session's name, or of the request's own name if it has no session,
    modulo the number of ready replicas."""

    blind = True

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        return choices[draws.key(0, f"route {request.session or request.name}") % len(choices)]
