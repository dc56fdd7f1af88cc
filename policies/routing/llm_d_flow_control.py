"""llm-d's flow control in front of any router (llm-d-router at ebab68792, behind its feature gate `flowControl`).

Source: pkg/epp/flowcontrol. While replicas are saturated, requests wait in the endpoint picker, in priority bands, the
most urgent first. While the saturation, as reported by engines, is below 1, one request leaves per millisecond. A
request is refused with 429 if its band is full or its time in the queue is up. Priorities are those of the traces,
lowest first; llm-d counts in the opposite direction. Not modeled: limits in bytes, per-band limits, forgetting of idle
flows, saturation by requests in flight, and stale metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, Reject, ReplicaView, Wait, ready, routers
from servesim.contracts.section import Settings
from servesim.policies.routing._behind import InFront, InFrontParams
from servesim.policies.routing._llm_d import POLL_S

SECOND = 10**9
TICK_NS = 1_000_000
"""Time between two dispatches from the queue (processor.go, dispatchTicker)."""


@dataclass(frozen=True, kw_only=True)
class FlowControlParams(InFrontParams):
    """Limits, with llm-d's defaults, and the router behind this one."""

    max_requests: int = 5000
    """Maximum number of requests waiting in a band."""
    request_ttl_s: float = 60.0
    """Time in the queue after which a request is refused."""
    queue_depth: float = 5.0
    """Number of waiting requests at which a replica counts as saturated."""
    kv_cache_util: float = 0.8
    """Share of KV memory in use at which a replica counts as saturated."""
    fairness: Literal["global-strict", "round-robin"] = "global-strict"
    """Order within a band: first come, first served, or one request of each tenant in turn."""
    router: str | Settings = "llm-d"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "max_requests", "request_ttl_s")
        if not self.queue_depth > 0 or not self.kv_cache_util > 0:
            raise ValueError("queue_depth and kv_cache_util must be above 0")


class Band:
    """Waiting requests of one priority, and their turns."""

    def __init__(self) -> None:
        self.turns: dict[int, int] = {}
        """Turn of each waiting request, by row."""
        self._turn = 0
        self._last: dict[str, int] = {}  # tenant -> turn of its last request

    def add(self, row: int, tenant: str) -> int:
        """Add a request and return its turn: the one after its tenant's last turn, but no earlier than the band's
        turn."""
        turn = max(self._turn, self._last.get(tenant, -1) + 1)
        self.turns[row] = self._last[tenant] = turn
        return turn

    def remove(self, row: int, sent: bool) -> None:
        """Remove a request. If it was sent, advance the band's turn to the request's turn."""
        turn = self.turns.pop(row)
        if sent:
            self._turn = turn


@routers.register("llm-d-flow-control")
class FlowControl(InFront):
    """Router that holds requests back by priority while replicas are saturated."""

    Params = FlowControlParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.bands: dict[int, Band] = {}
        self._next_ns = 0

    @classmethod
    def polls_s(cls, params: Any) -> float:
        return POLL_S

    def saturation(self, views: Sequence[ReplicaView]) -> float:
        """Return the mean over replicas of the larger of queue and memory use, each relative to its limit."""
        depth, util = self.params.queue_depth, self.params.kv_cache_util
        fuller = [max(views[i].num_waiting / depth, views[i].kv_usage / util) for i in ready(views)]
        return float(sum(fuller) / len(fuller))

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        band = self._band(request)
        mine = request.row in band.turns
        if not mine and len(band.turns) >= self.params.max_requests:
            return Reject(429)
        left = max(self._next_ns - self.clock(), 0) if mine else 0
        if not left and self.saturation(views) < 1 and (mine or not any(each.turns for each in self.bands.values())):
            return self.ask(request, views)
        return Wait(round(self.params.request_ttl_s * SECOND), 429, left or TICK_NS)

    def queue_key(self, request: Request) -> Any:
        turn = self._band(request).add(request.row, request.tenant)
        order = turn if self.params.fairness == "round-robin" else 0
        return request.priority, order, super().queue_key(request)

    def on_sent(self, request: Request, replica: int) -> None:
        self._forget(request, sent=True)
        super().on_sent(request, replica)

    def on_dropped(self, request: Request) -> None:
        self._forget(request, sent=False)
        super().on_dropped(request)

    def _forget(self, request: Request, sent: bool) -> None:
        band = self._band(request)
        if request.row in band.turns:
            band.remove(request.row, sent)
            if sent:
                self._next_ns = self.clock() + TICK_NS

    def _band(self, request: Request) -> Band:
        return self.bands.setdefault(request.priority, Band())
