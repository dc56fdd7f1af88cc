"""Any router behind a limit on requests in flight, with its own queue, like the concurrency limits of gateways.

This is a textbook limit, not modeled on a particular gateway. The queue size and timeout default to sglang-router's
(--queue-size 100, --queue-timeout-secs 60), which answers with 429 if the queue is full and with 408 after the timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaView, Wait, routers
from servesim.contracts.section import Settings
from servesim.policies.routing._behind import InFront, InFrontParams

SECOND = 10**9


@dataclass(frozen=True, kw_only=True)
class ConcurrencyLimitParams(InFrontParams):
    """The limit, its queue, and the router behind it."""

    max_concurrent_requests: int = 256
    """Maximum number of requests in flight across all replicas."""
    queue_size: int = 100
    """Maximum number of waiting requests; more are refused with 429."""
    queue_timeout_s: float = 60.0
    """Time in the queue after which a request is refused with 408."""
    router: str | Settings = "least-requests"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "max_concurrent_requests")
        check_least(self, 0, "queue_size", "queue_timeout_s")


@routers.register("concurrency-limit")
class ConcurrencyLimit(InFront):
    """Router that queues requests, first come, first served, while the number in flight is at the limit."""

    Params = ConcurrencyLimitParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.in_flight = 0
        self.queued: set[int] = set()
        """Rows of the waiting requests."""
        self._wait = Wait(round(params.queue_timeout_s * SECOND), 408)

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        mine = request.row in self.queued
        if self.in_flight < self.params.max_concurrent_requests and (mine or not self.queued):
            return self.ask(request, views)
        return self._wait if mine or len(self.queued) < self.params.queue_size else Reject(429)

    def queue_key(self, request: Request) -> Any:
        self.queued.add(request.row)
        return super().queue_key(request)

    def on_sent(self, request: Request, replica: int) -> None:
        self.queued.discard(request.row)
        self.in_flight += 1
        super().on_sent(request, replica)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self.in_flight -= 1
        super().on_finish(request, replica, status)

    def on_dropped(self, request: Request) -> None:
        self.queued.discard(request.row)
        super().on_dropped(request)
