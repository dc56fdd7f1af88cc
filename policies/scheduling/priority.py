"""Preemptive priorities: the most urgent requests run, regardless of arrival order (lower value first, as in vLLM).

With vLLM's own `policy=priority` an urgent request waits for a slot; here it takes one.
"""

from __future__ import annotations

from servesim.contracts import Request
from servesim.contracts.scheduler import schedulers

from .ordered import Ordered


@schedulers.register("priority")
class Priority(Ordered):
    """Scheduler in which a waiting request preempts less urgent running ones; ties are first come, first served."""

    preemptive = True

    def rank(self, request: Request, now: int) -> float:
        return request.priority
