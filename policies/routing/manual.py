"""Sticky routing keys: manual in sglang-router 0.3.2 and smg 1.9.0, sticky_least_loaded in vllm-router 0.1.17.

Source: lightseekorg/smg, model_gateway/src/policies/manual.rs. A key (in the original, the header X-SMG-Routing-Key)
stays with its replica as long as that replica is alive; the placement of new keys is a parameter. Here a key is the
session of a request, or its tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, ReplicaView, ready, routers
from servesim.policies.routing._breakers import GatewayParams, GatewayRouter


@dataclass(frozen=True, kw_only=True)
class ManualParams(GatewayParams):
    """Placement of keys, with the defaults of smg 1.9.0."""

    assignment_mode: Literal["random", "min_load", "min_group"] = "random"
    """Placement of a new key: on any replica, on one with the fewest requests in flight, or on one with the fewest keys
    that have requests in flight. Ties are broken at random."""
    key: Literal["session", "tenant"] = "session"
    """Source of a request's routing key."""
    max_idle_s: float = 14_400
    """Seconds of inactivity after which a key is forgotten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "max_idle_s")


@routers.register("manual")
class Manual(GatewayRouter):
    """Router that picks the replica that last received the key; a request without a key may go to any replica."""

    Params = ManualParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.placed: dict[str, tuple[int, int]] = {}
        """Replica of each key, and the time it was last sent there, in LRU order."""
        self.active: list[dict[str, int]] = [{} for _ in range(num_replicas)]
        """Requests in flight per key, by replica."""

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas from which one is drawn uniformly for the request."""
        choices = ready(views)
        key = self._key(request)
        if not key:
            return choices
        self._forget(self.clock() - round(self.params.max_idle_s * 1e9))
        replica, _ = self.placed.get(key, (-1, 0))
        if replica in choices:
            return [replica]
        mode = self.params.assignment_mode
        if mode == "random":
            return choices
        counts = self.load if mode == "min_load" else [len(keys) for keys in self.active]
        least = min(counts[i] for i in choices)
        return [i for i in choices if counts[i] == least]

    def choose(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(self.candidates(request, views))

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        key = self._key(request)
        if key:
            self.placed.pop(key, None)
            self.placed[key] = replica, self.clock()
            self.active[replica][key] = self.active[replica].get(key, 0) + 1

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        super().on_finish(request, replica, status)
        key = self._key(request)
        if key:
            self.active[replica][key] -= 1
            if not self.active[replica][key]:
                del self.active[replica][key]

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self.active) <= replica:
            self.active.append({})

    def _key(self, request: Request) -> str:
        return request.session if self.params.key == "session" else request.tenant

    def _forget(self, before_ns: int) -> None:
        """Forget keys that were last sent before a given time and are not in flight."""
        while self.placed:
            key, (replica, sent_ns) = next(iter(self.placed.items()))
            if sent_ns >= before_ns or key in self.active[replica]:
                return
            del self.placed[key]


@dataclass(frozen=True, kw_only=True)
class StickyParams(ManualParams):
    """Placement of keys in vllm-router 0.1.17."""

    counts_in_flight: bool = False
    """Whether new keys go to the least loaded replica. Over HTTP the real router counts nothing for this policy, so new
    keys may go to any replica."""


@routers.register("sticky-least-loaded")
class StickyLeastLoaded(Manual):
    """Manual routing as in vllm-router 0.1.17."""

    Params = StickyParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        mode: Literal["min_load", "random"] = "min_load" if params.counts_in_flight else "random"
        super().__init__(replace(params, assignment_mode=mode), num_replicas)
