"""Schedulers as a user would write them, to be timed."""

from __future__ import annotations

from servesim.contracts import Plan, PlanContext, Scheduler
from servesim.policies.scheduling.vllm import Vllm


class Fcfs(Scheduler):
    """Continuous batching that admits a request once all it may need is free."""

    def plan(self, ctx: PlanContext) -> Plan:
        budget = self.limits.max_num_batched_tokens
        left = ctx.decode(self.running, budget)
        budget -= ctx.num_tokens
        for request in left:
            new = min(ctx.due(request), budget)
            if new > 0 and ctx.extend(request, new):
                budget -= new
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hit = ctx.lookup(request)
            new = min(request.num_tokens - hit.num_tokens, budget)
            if not ctx.admit(request, new, hit, full_tokens=request.prompt_len + request.max_tokens):
                break
            budget -= new
            self.running.append(self.waiting.popleft())
        return ctx.plan


class Derived(Vllm):
    """vLLM's, with nothing changed."""
