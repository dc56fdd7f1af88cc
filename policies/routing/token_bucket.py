"""Any router behind a per-tenant rate limit: a token bucket of requests for each tenant, as in API gateways.

This is the textbook bucket, not modeled on a particular engine: it starts with `burst` requests, its maximum, and gains
`per_s` requests per second. A request is refused with 429 if the bucket holds less than one request.
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
from servesim.contracts.section import Settings
from servesim.policies.routing._behind import InFront, InFrontParams

SECOND = 10**9


@dataclass(frozen=True, kw_only=True)
class TokenBucketParams(InFrontParams):
    """Limit for each tenant, and the router behind this one. The defaults do not represent any public service's
    limits."""

    per_s: float = 1.0
    """Long-run requests/s that a tenant may send."""
    burst: int = 10
    """Maximum number of requests that a tenant may send in a burst."""
    router: str | Settings = "least-requests"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "burst")
        if not 0 <= self.per_s < math.inf:
            raise ValueError(f"per_s is {self.per_s:g} but must be a number of at least 0")


@routers.register("token-bucket")
class TokenBucket(InFront):
    """Router that refuses requests above a tenant's rate; requests without a tenant together count as one tenant."""

    Params = TokenBucketParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._per_ns = Fraction(params.per_s) / SECOND
        self._levels: dict[str, tuple[int, Fraction]] = {}  # tenant -> (time, level at that time)
        self._admitted: set[int] = set()
        """Rows already admitted: requests routed again after a wait or a crash are not counted twice."""

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
