"""Any router behind circuit breakers, which temporarily skip failing replicas.

As in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaState, ReplicaView, Views, ready, routers
from servesim.policies.routing._behind import InFront
from servesim.policies.routing._retries import Breaker, RetryParams


@dataclass(frozen=True)
class CircuitBreakerParams(RetryParams):
    """Name of the router behind the breakers, and settings of retries and breakers, with the command-line defaults."""

    router: str = "round-robin"
    """Name of the router behind this one; it uses its default parameters."""


@routers.register("circuit-breaker")
class CircuitBreaker(InFront):
    """Router that asks another one for a replica whose breaker is not open, and rejects with 503 if there is none."""

    Params = CircuitBreakerParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.breakers = [Breaker(params) for _ in range(num_replicas)]

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        if all(breaker.closed() for breaker in self.breakers):
            return self.ask(request, views)
        now = self.clock()
        sound = [i for i in ready(views) if self.breakers[i].allows(now)]
        if not sound:
            return Reject(503)
        passed = Views(views)
        passed.ready = sound
        return self.ask(request, passed)

    def retry_ns(self, attempt: int) -> int | None:
        """Return the wait after the failure of a request's attempt number `attempt` (from 0), or None if its client
        gets the error."""
        wait: int | None = self.params.wait_ns(attempt, self.uniform())
        return wait

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        if status == "failed":
            self.breakers[replica].failed(self.clock())
        elif status == "finished":
            self.breakers[replica].succeeded(self.clock())
        super().on_finish(request, replica, status)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self.breakers) <= replica:
            self.breakers.append(Breaker(self.params))
        super().on_replica(replica, state)
