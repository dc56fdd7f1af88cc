"""Preemptive priorities: the most urgent requests run, whichever came first (lower value first, as in vLLM).

vLLM's own `policy=priority` lets an urgent waiter wait for a slot; here it takes one.
"""

from __future__ import annotations

from servesim.contracts import Request
from servesim.contracts.scheduler import schedulers

from .ordered import Ordered


@schedulers.register("priority")
class Priority(Ordered):
    """A waiter takes the place of running requests that are less urgent; first come, first served among equals."""

    preemptive = True

    def rank(self, request: Request, now: int) -> float:
        return request.priority
