"""The less loaded of two replicas drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaView, Router, ready, routers


@dataclass(frozen=True)
class Params:
    """Parameters of power of two."""

    counts_in_flight: bool = True
    """Load is the router's own count of requests in flight; false: what engines report as waiting and running."""


@routers.register("power-of-two")
class PowerOfTwo(Router):
    """Two distinct uniform picks; the lower load wins, and of equals the first pick, as in vllm-router 0.1.17."""

    paper = "Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (IEEE TPDS 2001)"
    Params = Params

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._load: dict[int, int] = {}

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = ready(views)
        if len(choices) == 1:
            return choices[0]
        at = int(self.uniform() * len(choices))
        other = int(self.uniform() * (len(choices) - 1))
        first, second = choices[at], choices[other + (other >= at)]
        return second if self._of(views[second]) < self._of(views[first]) else first

    def _of(self, view: ReplicaView) -> int:
        return self._load.get(view.index, 0) if self.params.counts_in_flight else view.num_waiting + view.num_running

    def on_sent(self, request: Request, replica: int) -> None:
        self._load[replica] = self._load.get(replica, 0) + 1

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        self._load[replica] -= 1
