"""A router in front of another one, which it asks for a replica and to which it forwards events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, ReplicaState, ReplicaView, Report, Router, life, routers
from servesim.errors import UserError
from servesim.plugins.registry import build_params


class InFront(Router):
    """Router in front of another one, which `params.router` names and which runs with its default parameters."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        cls, values = routers.resolve(params.router)
        self.inner = cls(build_params(f"router {params.router}", cls.Params, dict(values)), num_replicas)
        unheard = {"on_kv_events", "on_output_block"} & life(self.inner)
        if unheard:
            raise UserError(f"{self.inner.name} needs cache events, which {self.name} does not forward")

    def route(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the inner router's decision for a decode replica, since the request was admitted before its prefill;
        otherwise, return the decision of `admit`."""
        return self.ask(request, views) if self.role == "decode" else self.admit(request, views)

    @abstractmethod
    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return a decision as `route` does; it may also hold the request back or reject it."""

    def ask(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        """Return the decision of the inner router."""
        self.inner.seed, self.inner.clock, self.inner.role = self.seed, self.clock, self.role
        self.inner.selective = self.selective
        return self.inner.route(request, views)

    def queue_key(self, request: Request) -> Any:
        return self.inner.queue_key(request)

    def cached_tokens(self, request: Request, replica: int) -> int:
        return self.inner.cached_tokens(request, replica)

    def on_sent(self, request: Request, replica: int) -> None:
        self.inner.on_sent(request, replica)

    def on_prefill_done(self, request: Request, replica: int) -> None:
        self.inner.on_prefill_done(request, replica)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self.inner.on_finish(request, replica, status)

    def on_dropped(self, request: Request) -> None:
        self.inner.on_dropped(request)

    def on_report(self, replica: int, report: Report) -> None:
        self.inner.on_report(replica, report)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        self.inner.on_replica(replica, state)
