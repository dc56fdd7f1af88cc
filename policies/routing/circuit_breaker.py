"""Any router behind circuit breakers, which pass over replicas that fail for a while.

As in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import (
    Decision,
    FinishStatus,
    Reject,
    ReplicaState,
    ReplicaView,
    Report,
    Router,
    Views,
    life,
    ready,
    routers,
)
from servesim.errors import UserError
from servesim.plugins.registry import build_params
from servesim.policies.routing._retries import Breaker, RetryParams


@dataclass(frozen=True)
class CircuitBreakerParams(RetryParams):
    """The router behind the breakers; attempts and breakers, with the defaults of the command line."""

    router: str = "round-robin"
    """Name of a router, with its default parameters."""


@routers.register("circuit-breaker")
class CircuitBreaker(Router):
    """Asks a router for one of the replicas whose breakers are not open; 503 where there is none."""

    Params = CircuitBreakerParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        cls, values = routers.resolve(params.router)
        self.inner = cls(build_params(f"router {params.router}", cls.Params, dict(values)), num_replicas)
        unheard = {"on_kv_events", "on_output_block"} & life(self.inner)
        if unheard:
            raise UserError(f"{self.inner.name} hears of caches, which circuit-breaker does not pass on")
        self.breakers = [Breaker(params) for _ in range(num_replicas)]

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        self.inner.seed, self.inner.clock = self.seed, self.clock
        if all(breaker.closed() for breaker in self.breakers):
            return self.inner.route(request, views)
        now = self.clock()
        sound = [i for i in ready(views) if self.breakers[i].allows(now)]
        if not sound:
            return Reject(503)
        passed = Views(views)
        passed.ready = sound
        return self.inner.route(request, passed)

    def retry_ns(self, attempt: int) -> int | None:
        """Return the wait after attempt number `attempt` (from 0) of a request failed; None: its client gets the
        error."""
        wait: int | None = self.params.wait_ns(attempt, self.uniform())
        return wait

    def queue_key(self, request: Request) -> Any:
        return self.inner.queue_key(request)

    def on_sent(self, request: Request, replica: int) -> None:
        self.inner.on_sent(request, replica)

    def on_prefill_done(self, request: Request, replica: int) -> None:
        self.inner.on_prefill_done(request, replica)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        if status == "failed":
            self.breakers[replica].failed(self.clock())
        elif status == "finished":
            self.breakers[replica].succeeded(self.clock())
        self.inner.on_finish(request, replica, status)

    def on_report(self, replica: int, report: Report) -> None:
        self.inner.on_report(replica, report)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self.breakers) <= replica:
            self.breakers.append(Breaker(self.params))
        self.inner.on_replica(replica, state)
