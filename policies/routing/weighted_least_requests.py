"""Fewest requests in flight for the weight of a replica, as nginx or Envoy count it.

`rule=nginx` (src/http/modules/ngx_http_upstream_least_conn_module.c): the fewest requests divided by weight; smooth
weighted round robin among those that are tied. `rule=envoy` (Weighted least request; extensions/load_balancing_policies
/least_request and common/upstream/edf_scheduler.h under source): if all weights are equal, the one with fewer requests
of two drawn at random; otherwise, weighted round robin by earliest deadline, where a replica's next deadline is 1 /
weight later, with weight / (its requests + 1) ^ active_request_bias at the time when it is chosen. Envoy starts its
schedule again when the set of hosts changes. Not modeled: its slow start, localities and random offset at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, Literal

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter
from servesim.policies.routing._weights import WeightParams, Weights
from servesim.policies.routing.weighted_round_robin import Smooth


@dataclass(frozen=True)
class LeastParams(WeightParams):
    """Weights of the replicas, and the rule."""

    rule: Literal["nginx", "envoy"] = "nginx"
    """System whose rule is followed."""
    active_request_bias: float = 1.0
    """Envoy's exponent of the number of requests; 0: weighted round robin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "active_request_bias")


@routers.register("weighted-least-requests")
class WeightedLeastRequests(InFlightRouter):
    """Router that picks the replica with the fewest requests in flight relative to its weight."""

    Params = LeastParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self._weights = Weights(self.name, params, num_replicas)
        self._smooth = Smooth()
        self._deadlines: dict[str, tuple[Sequence[int], list[tuple[float, int, int]]]] = {}  # by model
        self._order = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices, weights = ready(views), self._weights.of(views)
        if self.params.rule == "nginx":
            return self._least(choices, weights)
        if len({weights[i] for i in choices}) == 1:
            one, other = (choices[int(self.uniform() * len(choices))] for _ in range(2))
            return other if self.load[other] < self.load[one] else one
        return self._earliest(choices, weights, views[choices[0]].model)

    def _least(self, choices: Sequence[int], weights: Sequence[int]) -> int:
        load, best = self.load, choices[0]
        least, weight = load[best], weights[best]
        tied: list[int] = []
        for i in choices:
            more = load[i] * weight - least * weights[i]
            if more < 0:
                best, least, weight, tied = i, load[i], weights[i], [i]
            elif not more:
                tied.append(i)
        return self._smooth.next(tied, weights) if len(tied) > 1 else best

    def _earliest(self, choices: Sequence[int], weights: Sequence[int], model: str) -> int:
        known, queue = self._deadlines.get(model, ((), []))
        if known != choices:
            queue = [(1 / self._weight(i, weights), order, i) for order, i in enumerate(choices)]
            heapify(queue)
            self._order = max(self._order, len(choices))
            self._deadlines[model] = list(choices), queue
        now, _, best = queue[0]
        self._order += 1
        heapreplace(queue, (now + 1 / self._weight(best, weights), self._order, best))
        return best

    def _weight(self, i: int, weights: Sequence[int]) -> float:
        weight: float = weights[i] / (self.load[i] + 1) ** self.params.active_request_bias
        return weight
