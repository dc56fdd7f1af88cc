"""vLLM's own balancer over data-parallel ranks: fewest of 4 x waiting + running by counts that are up to 100 ms old."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers


@dataclass(frozen=True)
class Params:
    """Parameters of `vllm-dp`."""

    ranks: int = 0
    """Data-parallel ranks of a replica; 0: all there are."""
    client_count: int = 1
    """API server processes, each of which counts its choices as those of all."""


@routers.register("vllm-dp")
class VllmDataParallel(Router):
    """The rank with the least 4 x waiting + running, the first among equals; each choice counts as one more that waits,
    until the next counts come (`cluster.report_every_s`, vLLM's coordinator publishes them every 100 ms). Of several
    replicas one after the other is taken, and then one of its ranks (vllm/v1/engine/core_client.py, DPLBAsyncMPClient).
    """

    Params = Params

    def __init__(self, params: Params, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._ranks = params.ranks or num_replicas
        self._turn = 0
        self._counts = [[0, 0] for _ in range(num_replicas)]
        self._seen = [-1] * num_replicas

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        known = ready(views)
        for i in known:
            view = views[i]
            if view.at_ns != self._seen[i]:
                self._counts[i], self._seen[i] = [view.num_waiting, view.num_running], view.at_ns
        replicas = sorted({i // self._ranks for i in known})
        replica = replicas[self._turn % len(replicas)]
        self._turn += 1
        mine = [i for i in known if i // self._ranks == replica]
        best = min(mine, key=lambda i: 4 * self._counts[i][0] + self._counts[i][1])
        self._counts[best][0] += self.params.client_count
        return best
