"""The least_load policy of smg 1.13.0: the replica with the lowest expected wait according to the engines' reports.

Without reports, the policy picks the least loaded replica.

Source: lightseekorg/smg, model_gateway/src/policies/least_load.rs. The real policy polls waiting uncached tokens and
generated tokens/s. Reports here contain waiting requests and KV usage, so `tokens_per_request` stands for the tokens of
a waiting request and `tokens_per_s` for the throughput (the real policy's fallback values).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, Report, ready, routers
from servesim.policies.routing._breakers import LOAD_MONITOR_S, GatewayParams, GatewayRouter


@dataclass(frozen=True, kw_only=True)
class LeastLoadParams(GatewayParams):
    """Values missing from the reports, with the defaults of smg 1.13.0."""

    tokens_per_request: int = 1024
    """Assumed tokens per waiting request."""
    tokens_per_s: float = 2000
    """Assumed tokens/s that a replica generates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "tokens_per_request", "tokens_per_s")


@routers.register("smg-least-load")
class SmgLeastLoad(GatewayRouter):
    """Router that minimizes (waiting tokens + tokens sent since the last report) / throughput + 0.15 k / (1 - k), with
    k being KV usage; ties go to the lowest index. Without reports (`cluster.report_every_s` of 0, which is
    --disable-load-monitoring), it picks any of the replicas that are least loaded by its own count."""

    Params = LeastLoadParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._reports: dict[int, Report] = {}
        self._sent_since = [0] * num_replicas  # tokens

    @classmethod
    def polls_s(cls, params: Any) -> float:
        return LOAD_MONITOR_S

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas from which one is drawn uniformly for the request."""
        choices = ready(views)
        if self._reports:
            return [min(choices, key=self._score)]
        least = min(self.load[i] for i in choices)
        return [i for i in choices if self.load[i] == least]

    def choose(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(self.candidates(request, views))

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        self._sent_since[replica] += request.prompt_len or self.params.tokens_per_request

    def on_report(self, replica: int, report: Report) -> None:
        self._reports[replica] = report
        self._sent_since[replica] = 0

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self._sent_since) <= replica:
            self._sent_since.append(0)
        if state in ("gone", "failed"):
            self._reports.pop(replica, None)

    def _score(self, replica: int) -> float:
        params: LeastLoadParams = self.params
        report = self._reports.get(replica)
        if report is None:
            return float(self.load[replica] * params.tokens_per_request / params.tokens_per_s)
        used = min(report.kv_usage, 0.999)
        waiting = report.num_waiting * params.tokens_per_request + self._sent_since[replica]
        return float(waiting / params.tokens_per_s + 0.15 * used / (1 - used))
