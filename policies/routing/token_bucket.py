"""Any router behind a rate limit by tenant: a token bucket each, of requests, as API gateways have them.

The textbook bucket, of no engine in particular: it holds `burst` requests at first and at most, and gains `per_s` of
them a second. A request that finds less than one there is refused with 429.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaView, routers
from servesim.policies.routing._behind import InFront

SECOND = 10**9


@dataclass(frozen=True)
class TokenBucketParams:
    """The limit of each tenant, and the router behind it. No public service's limits are meant by the defaults."""

    per_s: float = 1.0
    """Requests/s that a tenant may send in the long run."""
    burst: int = 10
    """Requests that it may send at once."""
    router: str = "least-requests"
    """Name of a router, with its default parameters."""

    def __post_init__(self) -> None:
        check_least(self, 1, "burst")
        if not 0 <= self.per_s < math.inf:
            raise ValueError(f"per_s is {self.per_s:g}, must be a number from 0")


@routers.register("token-bucket")
class TokenBucket(InFront):
    """Refuses what exceeds a tenant's rate; requests without a tenant are one tenant together."""

    Params = TokenBucketParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._per_ns = Fraction(params.per_s) / SECOND
        self._levels: dict[str, tuple[int, Fraction]] = {}  # by tenant: when, and what it held then
        self._admitted: set[int] = set()
        """Rows: asked for again after a wait or a crash they are not counted twice."""

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        if request.row not in self._admitted:
            now, full = self.clock(), Fraction(self.params.burst)
            since, level = self._levels.get(request.tenant, (now, full))
            level = min(full, level + (now - since) * self._per_ns)
            if level < 1:
                return Reject(429)
            self._levels[request.tenant] = (now, level - 1)
            self._admitted.add(request.row)
        return self.ask(request, views)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        if status != "failed":
            self._admitted.discard(request.row)
        super().on_finish(request, replica, status)
