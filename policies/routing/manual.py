"""Sticky routing keys: manual of sglang-router 0.3.2 and smg 1.9.0, sticky_least_loaded of vllm-router 0.1.17.

Source: lightseekorg/smg, model_gateway/src/policies/manual.rs. A key, there the header X-SMG-Routing-Key, goes where it
went before, as long as that replica lives; what a new key does is a parameter. Here a key is the session of a request,
or its tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter


@dataclass(frozen=True)
class ManualParams:
    """Placement of keys, with the defaults of smg 1.9.0."""

    assignment_mode: Literal["random", "min_load", "min_group"] = "random"
    """Where a new key goes: anywhere; to a replica with the fewest requests in flight; or to one with the fewest keys
    that have requests in flight. Draws among equals."""
    key: Literal["session", "tenant"] = "session"
    """Source of a request's routing key."""
    max_idle_s: float = 14_400
    """A key that was not heard of for so long is forgotten."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_idle_s")


@routers.register("manual")
class Manual(InFlightRouter):
    """The replica that a key went to before; a request without a key goes anywhere."""

    Params = ManualParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.placed: dict[str, tuple[int, int]] = {}
        """The replica of each key, and when it was last sent there, least recently used first."""
        self.active: list[dict[str, int]] = [{} for _ in range(num_replicas)]
        """Requests in flight of each key, by replica."""

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas one of which gets the request, all equally likely."""
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

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
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
        """Forget the keys last sent before a time and not in flight."""
        while self.placed:
            key, (replica, sent_ns) = next(iter(self.placed.items()))
            if sent_ns >= before_ns or key in self.active[replica]:
                return
            del self.placed[key]


@dataclass(frozen=True)
class StickyParams(ManualParams):
    """Placement of keys in vllm-router 0.1.17."""

    counts_in_flight: bool = False
    """Whether new keys go to the emptiest replica. Over HTTP the real one counts nothing for this policy: they go
    anywhere."""


@routers.register("sticky-least-loaded")
class StickyLeastLoaded(Manual):
    """Manual routing as vllm-router 0.1.17 does it."""

    Params = StickyParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        mode: Literal["min_load", "random"] = "min_load" if params.counts_in_flight else "random"
        super().__init__(StickyParams(mode, params.key, params.max_idle_s, params.counts_in_flight), num_replicas)
