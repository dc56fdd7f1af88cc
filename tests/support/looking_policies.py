"""Schedulers whose next plan is not the last one again, though they serve all their decodes in bulk."""

from __future__ import annotations

from typing import Any

from servesim.contracts import Plan, PlanContext, Request, Scheduler
from servesim.policies.scheduling.vllm import Vllm


class Timed(Scheduler):
    """In every other five microseconds only the first request runs."""

    supports = frozenset({"async"})

    def plan(self, ctx: PlanContext) -> Plan:
        running = self.running[:1] if ctx.now // 5000 % 2 else self.running
        for request in ctx.decode(running, len(running)):
            if (new := ctx.due(request)) > 0:
                ctx.extend(request, new)
        while self.waiting and ctx.admit(self.waiting[0], self.waiting[0].num_tokens):
            self.running.append(self.waiting.popleft())
        return ctx.plan


class Counting(Vllm):
    """Preempts a request once, when it has ten tokens, and looks at all counters for that."""

    def plan(self, ctx: PlanContext) -> Plan:
        for request in list(self.running):
            if request.num_output_tokens == 10 and not request.num_preemptions:
                self.running.remove(request)
                ctx.preempt(request)
                self.waiting.append(request)
        return super().plan(ctx)


class PlanCounter(Vllm):
    """Counts plans by itself."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.plans = 0

    def plan(self, ctx: PlanContext) -> Plan:
        self.plans += 1
        return super().plan(ctx)


class Watcher(Vllm):
    """Puts a request that arrives first in the queue if a running one is past its middle, or memory half full."""

    def on_arrival(self, request: Request) -> None:
        half = any(2 * r.num_output_tokens > r.max_tokens for r in self.running)
        if half or 2 * self.kv.usage().free < self.kv.capacity_tokens:
            self.waiting.appendleft(request)
        else:
            self.waiting.append(request)


class TokensLeft(Vllm):
    """Compares what is left of the running requests, counted in bulk, with their counters."""

    def plan(self, ctx: PlanContext) -> Plan:
        for most in (3, 1 << 40):
            for requests in (self.running, self.running[1:]):
                left = ctx.tokens_left(requests, most)
                assert left == sum(min(r.max_tokens - r.num_output_tokens, most) for r in requests)
        return super().plan(ctx)
