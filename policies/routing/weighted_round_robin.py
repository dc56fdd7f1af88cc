"""nginx's smooth weighted round robin: each replica in turn, as often as its weight says, evenly spread.

Source: nginx, src/http/ngx_http_upstream_round_robin.c (ngx_http_upstream_get_peer). At each choice the current weight
of every ready replica grows by its weight; the largest is chosen, the lowest index if tied, and loses the sum of the
weights: weights 5, 1, 1 give a a b a c a a. Not modeled: weights that fall after failures (`max_fails`), and weights
that grow slowly after a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router, ready, routers
from servesim.policies.routing._weights import WeightParams, Weights


class Smooth:
    """Current weights of smooth weighted round robin."""

    def __init__(self) -> None:
        self._current: list[int] = []

    def next(self, choices: Sequence[int], weights: Sequence[int]) -> int:
        """Return the next of the replicas to choose from."""
        current = self._current
        if len(current) < len(weights):
            current += [0] * (len(weights) - len(current))
        best, total = choices[0], 0
        for i in choices:
            total += weights[i]
            current[i] += weights[i]
            if current[i] > current[best]:
                best = i
        current[best] -= total
        return best


@routers.register("weighted-round-robin")
class WeightedRoundRobin(Router):
    """Router that sends requests to replicas in turn, in proportion to their weights, regardless of load."""

    blind = True
    Params = WeightParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._weights = Weights(self.name, params, num_replicas)
        self._smooth = Smooth()

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self._smooth.next(ready(views), self._weights.of(views))
