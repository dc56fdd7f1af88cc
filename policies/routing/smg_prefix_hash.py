"""The prefix_hash policy of smg (at commit 73da68ca9): consistent hashing of first tokens, with bounded loads.

Source: lightseekorg/smg, model_gateway/src/policies/prefix_hash.rs. Its help text describes walking the ring past full
replicas; the code takes the least loaded one instead, and so does this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv_events import key_of
from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, ready, routers
from servesim.policies.routing._breakers import GatewayParams, GatewayRouter
from servesim.policies.routing._ring import HashRing


@dataclass(frozen=True, kw_only=True)
class PrefixHashParams(GatewayParams):
    """Length of the hashed prefix, and the load limit."""

    prefix_token_count: int = 256
    """Number of leading prompt tokens that are hashed."""
    load_factor: float = 1.25
    """Multiple of the mean number of requests in flight (including the arriving one) above which a replica is full."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "prefix_token_count", "load_factor")


@routers.register("smg-prefix-hash")
class PrefixHash(GatewayRouter):
    """Router that picks a replica by the hash of the prompt's first tokens; if that replica is full, it picks the least
    loaded one that is not (lowest index)."""

    Params = PrefixHashParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._ring = HashRing(num_replicas)

    def choose(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        home = self._ring.find(self._key(request), choices)
        total = sum(self.load[i] for i in choices)
        most = self.params.load_factor * (total + 1) / len(choices)
        if total == 0 or self.load[home] <= most:
            return home
        return min((i for i in choices if self.load[i] <= most), key=self.load.__getitem__, default=home)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        self._ring.grow(replica + 1)

    def _key(self, request: Request) -> str:
        if request.content is None or not request.prompt_len:
            return request.name
        stop = min(request.prompt_len, self.params.prefix_token_count)
        return repr(key_of(request.content.fingerprint(stop), request.salt))
