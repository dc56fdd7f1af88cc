"""Any router behind circuit breakers, which temporarily skip failing replicas.

As in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaView, ready, routers
from servesim.contracts.section import Settings
from servesim.policies.routing._behind import InFront, InFrontParams
from servesim.policies.routing._breakers import Breakers, Limits
from servesim.policies.routing._retries import RetryParams


@dataclass(frozen=True, kw_only=True)
class CircuitBreakerParams(InFrontParams, RetryParams):
    """Settings of retries and breakers, with the command-line defaults, and the router behind the breakers."""

    router: str | Settings = "round-robin"

    def __post_init__(self) -> None:
        RetryParams.__post_init__(self)
        InFrontParams.__post_init__(self)


@routers.register("circuit-breaker")
class CircuitBreaker(InFront):
    """Router that asks another one for a replica whose breaker is not open, and rejects with 503 if there is none."""

    Params = CircuitBreakerParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        timeout_ns = round(params.timeout_s * 1e9)
        self.breakers = Breakers(Limits(params.failure_threshold, params.success_threshold, timeout_ns))

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        if self.breakers:
            views = self.breakers.passed(views, self.clock())
            if not ready(views):
                return Reject(503)
        return self.ask(request, views)

    def retry_ns(self, attempt: int) -> int | None:
        """Return the wait after the failure of a request's attempt number `attempt` (from 0), or None if its client
        gets the error."""
        wait: int | None = self.params.wait_ns(attempt, self.uniform())
        return wait

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        if self.breakers or status == "failed":
            self.breakers.heard(replica, status, self.clock())
        super().on_finish(request, replica, status)
