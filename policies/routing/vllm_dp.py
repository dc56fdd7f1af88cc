"""vLLM's internal load balancer for data-parallel ranks: the lowest 4 x waiting + running.

Source: vllm-project/vllm, vllm/v1/engine/core_client.py (DPLBAsyncMPClient). The coordinator reports queues every 100
ms (vllm/v1/engine/coordinator.py). A choice counts as waiting until the next report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, Router, ready, routers


@dataclass(frozen=True)
class VllmDPParams:
    """Settings of the front end."""

    client_count: int = 1
    """Number of API processes: each counts its own choice as if every process had made it."""

    ranks: int = 0
    """Number of ranks per replica, with replicas chosen in turn; 0: choose among all ranks every time."""

    def __post_init__(self) -> None:
        check_least(self, 1, "client_count")
        check_least(self, 0, "ranks")


@routers.register("vllm-dp")
class VllmDP(Router):
    """Router that picks the lowest 4 x (waiting + chosen since the report) + running, or the lowest index if tied."""

    Params = VllmDPParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._chosen = [(-1, 0)] * num_replicas  # (report time, choices)
        self._turn = -1

    @classmethod
    def polls_s(cls, params: Any) -> float:
        return 0.1

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        for i, view in enumerate(views):
            if view.at_ns != self._chosen[i][0]:
                self._chosen[i] = view.at_ns, 0
        return min(self._offered(ready(views)), key=lambda i: self._score(views[i], self.clock()))

    def _offered(self, known: Sequence[int]) -> Sequence[int]:
        ranks = self.params.ranks
        replicas = sorted({i // ranks for i in known}) if ranks else []
        if len(replicas) < 2:
            return known
        self._turn += 1
        return [i for i in known if i // ranks == replicas[self._turn % len(replicas)]]

    def on_sent(self, request: Request, replica: int) -> None:
        at_ns, chosen = self._chosen[replica]
        self._chosen[replica] = at_ns, chosen + self.params.client_count

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self._chosen) <= replica:
            self._chosen.append((-1, 0))

    def _score(self, view: ReplicaView, now_ns: int) -> int:
        chosen = 0 if view.at_ns >= now_ns else self._chosen[view.index][1]  # a live view includes them already
        return 4 * (view.num_waiting + chosen) + view.num_running
