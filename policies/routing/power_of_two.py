"""Power of two choices: the less loaded of two replicas drawn at random.

As in vllm-router 0.1.17, sglang-router 0.3.2 and smg 1.9.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._in_flight import InFlightRouter


@dataclass(frozen=True)
class PowerOfTwoParams:
    """Measure of a replica's load."""

    counts_in_flight: bool = True
    """Whether load is the number of requests in flight, as vllm-router counts them. Over HTTP sglang-router and smg
    1.9.0 count nothing for this policy: without counts, the first replica drawn is chosen, which is equivalent to
    `random`."""


@routers.register("power-of-two")
class PowerOfTwo(InFlightRouter):
    """Router that draws two distinct ready replicas and picks the one with fewer requests in flight, or the first drawn
    if tied."""

    searched = True
    Params = PowerOfTwoParams
    paper = "Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001"

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        choices = list(ready(views))
        first = self.pick(choices)
        if not self.params.counts_in_flight or len(choices) == 1:
            return first
        choices.remove(first)
        second = self.pick(choices)
        return second if self.load[second] < self.load[first] else first
