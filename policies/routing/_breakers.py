"""Circuit breakers of the SGLang router family: a replica that keeps failing is skipped for a time.

They are identical in sglang-router 0.3.2, smg 1.9.0 and vllm-router 0.1.17, and on unless --disable-circuit-breaker is
given. Source: lightseekorg/smg, model_gateway/src/core/circuit_breaker.rs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaView, Views, ready
from servesim.policies.routing._in_flight import InFlightRouter

LOAD_MONITOR_S = 10.0
"""Seconds between polls of a replica's load by the gateway of smg 1.9.0 and 1.13.0 (--load-monitor-interval)."""
NEVER = (1 << 32) - 1
"""Number of failures that open a breaker which is disabled."""


class Limits(NamedTuple):
    """When a breaker opens and closes."""

    failures: int
    """Consecutive failures that open a breaker."""
    successes: int
    """Consecutive successes that close a half-open one."""
    timeout_ns: int
    """Time until an open breaker is half open."""


class Breaker:
    """The circuit breaker of one replica."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._failures = self._successes = 0
        self._open_until_ns: int | None = None  # None: closed

    def clean(self) -> bool:
        """Return whether the breaker is as if it had never heard of a failure."""
        return self._open_until_ns is None and not self._failures

    def allows(self, now_ns: int) -> bool:
        """Return whether the replica may be chosen: its breaker is closed or half open."""
        return self._open_until_ns is None or now_ns >= self._open_until_ns

    def succeeded(self, now_ns: int) -> None:
        """Record a successful answer."""
        self._failures = 0
        if self._open_until_ns is not None and now_ns >= self._open_until_ns:
            self._successes += 1
            if self._successes >= self._limits.successes:
                self._open_until_ns = None

    def failed(self, now_ns: int) -> None:
        """Record a failure."""
        self._successes = 0
        self._failures += 1
        if self._open_until_ns is not None:
            if now_ns >= self._open_until_ns:
                self._open(now_ns)
        elif self._failures >= self._limits.failures:
            self._open(now_ns)

    def _open(self, now_ns: int) -> None:
        self._failures = 0
        self._open_until_ns = now_ns + self._limits.timeout_ns


class Breakers(dict[int, Breaker]):
    """The breakers of replicas, by index, that have heard of a failure since they were last closed by successes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def passed(self, views: Sequence[ReplicaView], now_ns: int) -> Sequence[ReplicaView]:
        """Return the views, in which only replicas may be chosen whose breakers allow it."""
        passed = Views(views)
        passed.columns = views.columns if isinstance(views, Views) else None
        passed.ready = [i for i in ready(views) if i not in self or self[i].allows(now_ns)]
        return passed

    def heard(self, replica: int, status: FinishStatus, now_ns: int) -> None:
        """Record how a request left a replica."""
        if status == "failed":
            self.setdefault(replica, Breaker(self._limits)).failed(now_ns)
        elif status == "finished" and replica in self:
            self[replica].succeeded(now_ns)
            if self[replica].clean():
                del self[replica]


@dataclass(frozen=True, kw_only=True)
class GatewayParams:
    """Settings of circuit breakers, with the names and defaults of the command line."""

    disable_circuit_breaker: bool = False
    """Whether replicas that keep failing are not skipped."""
    cb_failure_threshold: int = 10
    """Consecutive failures that open a replica's breaker, so that the replica is skipped."""
    cb_success_threshold: int = 3
    """Consecutive successes that close a half-open breaker."""
    cb_timeout_duration_secs: int = 60
    """Seconds until an open breaker is half open: the replica may be chosen, and one failure opens the breaker
    again."""

    def __post_init__(self) -> None:
        check_least(self, 1, "cb_failure_threshold", "cb_success_threshold")
        check_least(self, 0, "cb_timeout_duration_secs")


class GatewayRouter(InFlightRouter):
    """Router of the SGLang family: it skips replicas whose breaker is open, and rejects with 503 if none is left."""

    Params = GatewayParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        failures = NEVER if params.disable_circuit_breaker else params.cb_failure_threshold
        timeout_ns = params.cb_timeout_duration_secs * 10**9
        self.breakers = Breakers(Limits(failures, params.cb_success_threshold, timeout_ns))

    @abstractmethod
    def choose(self, request: Request, views: Sequence[ReplicaView]) -> int:
        """Return the index of the replica that gets the request; at least one is ready."""

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int | Decision:
        if self.breakers:
            views = self.breakers.passed(views, self.clock())
            if not ready(views):
                return Reject(503)
        return self.choose(request, views)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        super().on_finish(request, replica, status)
        if self.breakers or status == "failed":
            self.breakers.heard(replica, status, self.clock())
