"""Consistent hashing of routing keys: smg 1.9.0 (consistent_hashing) and vllm-router 0.1.17 (consistent_hash).

A key stays with its replica while the replica is alive; when a replica leaves, only its keys move. A request without a
key may go to any replica, as observed in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers
from servesim.policies.routing._ring import HashRing


@dataclass(frozen=True)
class ConsistentHashParams:
    """Source of the keys."""

    key: Literal["session", "tenant"] = "session"
    """Source of a request's routing key."""


@routers.register("consistent-hash")
class ConsistentHash(Router):
    """Router that picks the first ready replica clockwise from the key's position on a ring with 150 points per
    replica."""

    Params = ConsistentHashParams
    blind = True

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._ring = HashRing(num_replicas)

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        self._ring.grow(len(views))
        key = request.session if self.params.key == "session" else request.tenant
        return self._ring.find(key, ready(views)) if key else self.pick(ready(views))
