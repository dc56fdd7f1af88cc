"""Shortest remaining processing time: the requests with the least predicted output left run; preemptive.

`srpt-oracle` receives the true lengths, which gives an upper bound for any predictor under this rule.
"""

from __future__ import annotations

from servesim.contracts import KVAllocator, Limits, Plan, PlanContext, Request
from servesim.contracts.scheduler import PREDICTED, schedulers

from .ordered import Ordered, OrderedParams


@schedulers.register("srpt")
class Srpt(Ordered):
    """Scheduler that runs the requests with the least predicted output left. A request whose output exceeds its
    prediction counts as nearly done."""

    preemptive = True
    needs = frozenset({PREDICTED})
    paper = "Schrage, 1968; for LLM serving with predictions, Shahout et al., TRAIL, ICLR 2025"

    def rank(self, request: Request, now: int) -> float:
        return max(request.predicted_output_len - request.num_output_tokens, 0)


@schedulers.register("srpt-oracle")
class SrptOracle(Srpt):
    """SRPT with true output lengths."""

    needs = frozenset({"output_len"})

    def __init__(self, params: OrderedParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self._output_len: dict[Request, int] = {}

    def plan(self, ctx: PlanContext) -> Plan:
        for request in list(self.waiters()):
            if request not in self._output_len:  # arrived since the last plan
                self.drop_waiter(request)
                self._output_len[request] = ctx.output_len(request)
                self.on_arrival(request)
        return super().plan(ctx)

    def rank(self, request: Request, now: int) -> float:
        return self._output_len.get(request, 0) - request.num_output_tokens
