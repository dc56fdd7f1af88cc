"""vLLM V1's step with a different order of requests, both for admission and for preemption.

This is a base class for custom schedulers. Subclasses only need to implement `rank`:

    class ShortestPrompt(Ordered):
        def rank(self, request, now):
            return request.prompt_len
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from servesim.contracts import KVAllocator, Limits, Plan, PlanContext, Request
from servesim.contracts.params import SchedulerParams
from servesim.errors import PolicyError

from ._vllm_params import VllmParams
from .vllm import Vllm


@dataclass(frozen=True)
class OrderedParams(SchedulerParams):
    """vLLM's limits."""


class Ordered(Vllm):
    """Scheduler that serves waiting requests by `rank`, lowest first, with ties in arrival order. If memory runs out,
    it preempts the running request with the highest rank, which is recomputed when it returns."""

    Params: ClassVar[type[Any]] = OrderedParams
    supports = frozenset({"async"})
    preemptive: ClassVar[bool] = False
    """Whether a waiting request also preempts running ones of higher rank: one if it lacks a slot, and as many as it
    takes to free the memory that it needs."""
    dynamic: ClassVar[bool] = False
    """Whether the rank of a request changes while it waits. If so, the queue is sorted again at each plan, and no plan
    is skipped while a request waits."""

    def __init__(self, params: OrderedParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(VllmParams(params.max_num_seqs, params.max_num_batched_tokens), limits, kv)
        self.params = params
        self._by_priority = True  # the victim may be anywhere in the running list
        self._ranked: list[tuple[float, int, int, Request]] = []

    def rank(self, request: Request, now: int) -> float:
        """Return a number; the lowest is served first. `now` is the simulated time in ns if `dynamic`, else the
        request's arrival time. Even if not `dynamic`, the rank of a running request may change; it is queried when a
        request has to be preempted."""
        raise NotImplementedError(f"{self.name} has no method rank")

    def plan(self, ctx: PlanContext) -> Plan:
        if self._ranked:
            if self.dynamic:
                now = ctx.now
                self._ranked = sorted((*self._key(entry[-1], now), entry[-1]) for entry in self._ranked)
            if self.preemptive:
                self._make_way(ctx)
        return super().plan(ctx)

    def _make_way(self, ctx: PlanContext) -> None:
        """Preempt running requests that rank below the first waiting one until it has a slot and memory."""
        now = self._now(ctx)
        while self._ranked:
            waiter = self._head()
            hit = ctx.lookup(waiter)
            new = waiter.num_tokens - hit.num_tokens
            if len(self.running) < self._max_running and self.kv.can_admit(waiter, hit, new, waiter.num_tokens, 0):
                return
            last = max(self.running, key=lambda r: self._key(r, now), default=None)
            # Use the rank with which the waiting request was queued, even if tokens in flight when it was preempted
            # have arrived since: otherwise, the displaced request could be queued ahead of it and take its place back.
            if last is None or self._key(last, now)[0] <= self._ranked[0][0]:
                return
            self._displace(last, ctx, now)

    def _preempt(self, ctx: PlanContext) -> tuple[Request, int]:
        now = self._now(ctx)
        victim = max(self.running, key=lambda r: self._key(r, now))
        return victim, self._displace(victim, ctx, now)

    def _displace(self, request: Request, ctx: PlanContext, now: int) -> int:
        """Preempt a running request and queue it again; return the number of tokens it had in the current plan."""
        self.running.remove(request)
        refund = ctx.unschedule(request)
        ctx.preempt(request)
        self._enqueue(request, now)
        return refund

    def _now(self, ctx: PlanContext) -> int:
        """Return the time, reading the clock only if ranks may depend on it."""
        return ctx.now if self.dynamic else 0

    def _key(self, request: Request, now: int) -> tuple[float, int, int]:
        arrival_ns = request.arrival_ns
        rank: Any = self.rank(request, now if self.dynamic else arrival_ns)
        if rank is None:
            raise PolicyError(f"{self.name}: rank returns None, not a number")
        return rank, arrival_ns, request.row

    def _enqueue(self, request: Request, now: int) -> None:
        heapq.heappush(self._ranked, (*self._key(request, now), request))

    def on_arrival(self, request: Request) -> None:
        self._enqueue(request, request.arrival_ns)

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
