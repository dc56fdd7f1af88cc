"""vLLM V1's step with another order of requests: who waits first, and who gives way."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from servesim.contracts import KVAllocator, Limits, Plan, PlanContext, Request
from servesim.contracts.params import SchedulerParams

from ._vllm_params import VllmParams
from .vllm import Vllm


@dataclass(frozen=True)
class OrderedParams(SchedulerParams):
    """vLLM's limits."""


class Ordered(Vllm):
    """Waiting requests are served by `rank`, least first. A preemptive order also lets a waiter take the place of
    running requests of higher rank, one for one where slots are short and as many as its memory takes; they compute
    again when they come back."""

    Params: ClassVar[type[Any]] = OrderedParams
    supports = frozenset({"async"})
    preemptive = False

    def __init__(self, params: OrderedParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(VllmParams(params.max_num_seqs, params.max_num_batched_tokens), limits, kv)
        self._by_priority = True  # who gives way stands anywhere in the running list
        self._ranked: list[tuple[float, int, int, Request]] = []

    def rank(self, request: Request) -> float:
        """Less is served first; may change only while a request runs, and then only fall."""
        raise NotImplementedError

    def plan(self, ctx: PlanContext) -> Plan:
        if self.preemptive:
            self._make_way(ctx)
        return super().plan(ctx)

    def _make_way(self, ctx: PlanContext) -> None:
        """Preempt running requests that rank behind the first waiter until it has a slot and memory."""
        while self._ranked:
            waiter = self._head()
            hit = ctx.lookup(waiter)
            new = waiter.num_tokens - hit.num_tokens
            if len(self.running) < self._max_running and self.kv.can_admit(waiter, hit, new, waiter.num_tokens, 0):
                return
            last = max(self.running, key=self._key, default=None)
            if last is None or self.rank(last) <= self.rank(waiter):
                return
            self.running.remove(last)
            ctx.preempt(last)
            self._requeue(last)

    def _preempt(self, ctx: PlanContext) -> tuple[Request, int]:
        victim = max(self.running, key=self._key)
        self.running.remove(victim)
        refund = ctx.unschedule(victim)
        ctx.preempt(victim)
        self._requeue(victim)
        return victim, refund

    def _key(self, request: Request) -> tuple[float, int, int]:
        return self.rank(request), request.arrival_ns, request.row

    def on_arrival(self, request: Request) -> None:
        heapq.heappush(self._ranked, (*self._key(request), request))

    def drop_waiter(self, request: Request) -> None:
        self._ranked = [entry for entry in self._ranked if entry[-1] is not request]
        heapq.heapify(self._ranked)

    def waiters(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._ranked))

    def num_waiting(self) -> int:
        return len(self._ranked)

    def _head(self) -> Request:
        return self._ranked[0][-1]

    def _pop_head(self) -> None:
        heapq.heappop(self._ranked)

    def _requeue(self, request: Request) -> None:
        self.on_arrival(request)
