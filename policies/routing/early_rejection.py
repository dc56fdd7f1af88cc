"""Any router behind a predictor: requests whose first token would be too late are refused on arrival.

Based on Mooncake's early rejection (Qin et al., FAST 2025, section 6), which compares the predicted load of prefill and
decode with their limits. Here only the time to first token is predicted, from data that a router has by itself: the
prompt tokens that the chosen replica has not computed yet, divided by the rate (prompt tokens/s) at which replicas have
computed prompts while they had any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import Decision, FinishStatus, Reject, ReplicaState, ReplicaView, routers
from servesim.contracts.section import Settings
from servesim.policies.routing._behind import InFront, InFrontParams

SECOND = 10**9


@dataclass(frozen=True, kw_only=True)
class EarlyRejectionParams(InFrontParams):
    """The limit, and the router behind this one."""

    ttft_s: float = 5.0
    """Predicted time to first token above which a request is refused with 429."""
    router: str | Settings = "least-requests"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "ttft_s")


@routers.register("early-rejection")
class EarlyRejection(InFront):
    """Router that refuses requests whose first token would be too late, or accepts all until the first prompt has been
    computed."""

    Params = EarlyRejectionParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.backlog = [0] * num_replicas
        """Prompt tokens sent to each replica and not yet computed."""
        self._busy_from = [0] * num_replicas  # when each backlog began
        self._pending: dict[int, int] = {}  # row -> prompt tokens
        self._computed = self._busy_ns = 0  # prompt tokens, and the time with a backlog, in completed busy periods

    def predicted_ns(self, request: Request, replica: int) -> float:
        """Return the time to first token if the request were sent now, or 0 if no rate is known yet."""
        if not self._computed:
            return 0.0
        now, open_ns = self.clock(), 0
        for backlog, since in zip(self.backlog, self._busy_from, strict=True):
            open_ns += now - since if backlog else 0
        return (self.backlog[replica] + request.prompt_len) * (self._busy_ns + open_ns) / self._computed

    def admit(self, request: Request, views: Sequence[ReplicaView]) -> Decision:
        decision = self.ask(request, views)
        if isinstance(decision, int) and self.predicted_ns(request, decision) > self.params.ttft_s * SECOND:
            return Reject(429)
        return decision

    def on_sent(self, request: Request, replica: int) -> None:
        if not self.backlog[replica]:
            self._busy_from[replica] = self.clock()
        self._pending[request.row] = request.prompt_len
        self.backlog[replica] += request.prompt_len
        super().on_sent(request, replica)

    def on_prefill_done(self, request: Request, replica: int) -> None:
        self._computed += self._pending.get(request.row, 0)
        self._done(request, replica)
        super().on_prefill_done(request, replica)

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self._done(request, replica)
        super().on_finish(request, replica, status)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self.backlog) <= replica:
            self.backlog.append(0)
            self._busy_from.append(0)
        super().on_replica(replica, state)

    def _done(self, request: Request, replica: int) -> None:
        tokens = self._pending.pop(request.row, 0)
        self.backlog[replica] -= tokens
        if tokens and not self.backlog[replica]:
            self._busy_ns += self.clock() - self._busy_from[replica]
