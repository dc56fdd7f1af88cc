"""The prefix_hash policy of smg (at commit 73da68ca9): a ring hashed by first tokens, with bounded loads.

Source: lightseekorg/smg, model_gateway/src/policies/prefix_hash.rs. Its help speaks of walking the ring past full
replicas; the code takes the emptiest instead, and so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv_events import key_of
from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter
from servesim.policies.routing._ring import HashRing


@dataclass(frozen=True)
class PrefixHashParams:
    """The prefix that counts and the load that is too much."""

    prefix_token_count: int = 256
    """Tokens of a prompt's beginning that are hashed."""
    load_factor: float = 1.25
    """A replica is full beyond this multiple of the mean of requests in flight, the arriving one counted."""

    def __post_init__(self) -> None:
        check_least(self, 1, "prefix_token_count", "load_factor")


@routers.register("smg-prefix-hash")
class PrefixHash(InFlightRouter):
    """The replica that the first tokens of the prompt hash to; where it is full, the emptiest that is not (lowest
    index)."""

    Params = PrefixHashParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._ring = HashRing(num_replicas)

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
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
