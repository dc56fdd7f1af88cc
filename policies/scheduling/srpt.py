"""Shortest remaining processing time: the requests with the least predicted output left run; preemptive.

`srpt-oracle` receives the true lengths, which gives an upper bound for any predictor under this rule.
"""

from __future__ import annotations

from collections.abc import Iterator

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
        self._come: dict[Request, None] = {}  # arrived since the last plan

    def plan(self, ctx: PlanContext) -> Plan:
        come, self._come = self._come, {}
        for request in come:
            if request not in self._output_len:
                self._output_len[request] = ctx.output_len(request)
            super().on_arrival(request)
        return super().plan(ctx)

    def rank(self, request: Request, now: int) -> float:
        return self._output_len.get(request, 0) - request.num_output_tokens

    def on_arrival(self, request: Request) -> None:
        self._come[request] = None

    def drop_waiter(self, request: Request) -> None:
        if request in self._come:
            del self._come[request]
        else:
            super().drop_waiter(request)

    def waiters(self) -> Iterator[Request]:
        come = [(*self._key(request, request.arrival_ns), request) for request in self._come]
        return (entry[-1] for entry in sorted([*self._ranked, *come]))

    def num_waiting(self) -> int:
        return len(self._ranked) + len(self._come)
