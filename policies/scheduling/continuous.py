"""Continuous batching with prefill and decode iterations apart (vLLM V0: vllm/core/scheduler.py, 0.6).

Prefill first: whenever waiting prompts fit they run alone and all decodes stall. On a shortage of blocks the
request that came last gives way, by recomputation or to host memory; who was swapped out comes back before anyone new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from servesim.contracts import Defaults, KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.scheduler import SchedulerParams, schedulers

from ._common import (
    FOREVER,
    may_find_more,
    one_block_free,
    pending,
    refuse_if_hopeless,
    steps_with_blocks_free,
    watermark,
)


@dataclass(frozen=True)
class ContinuousParams(SchedulerParams):
    """vLLM V0's knobs. Unset: 256 sequences, and tokens for the longest request, at least 2,048."""

    watermark: float = 0.01
    """Fraction of the blocks that admissions and returns leave free."""
    preemption_mode: str = "recompute"
    """"recompute" (V0's choice for requests of one sequence) or "swap"."""
    reserve_output: bool = False
    """Admissions set memory for the longest possible output aside, so that nobody is preempted (TGI)."""
    enable_chunked_prefill = False  # no parameter: prompts run whole

    def __post_init__(self) -> None:
        if self.preemption_mode not in ("recompute", "swap"):
            raise ValueError(f'preemption_mode is "recompute" or "swap", not "{self.preemption_mode}"')


@schedulers.register("continuous")
class Continuous(Scheduler):
    """vLLM V0's default scheduler. Where host memory is full it recomputes (V0 gave up)."""

    Params = ContinuousParams
    supports = frozenset({"swap"})
    paper = "Kwon et al., PagedAttention, SOSP 2023"
    params: ContinuousParams

    def __init__(self, params: ContinuousParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.swapped: deque[Request] = deque()
        self.reserve = watermark(kv, params.watermark)
        self._reserves = params.reserve_output and not kv.reserves

    @classmethod
    def complete(cls, params: ContinuousParams, defaults: Defaults) -> ContinuousParams:
        tokens = params.max_num_batched_tokens or max(2048, defaults.max_model_len)
        return replace(params, max_num_batched_tokens=tokens, max_num_seqs=params.max_num_seqs or 256)

    def plan(self, ctx: PlanContext) -> Plan:
        if not self.swapped:
            self._prefill(ctx)
        if not ctx.plan.tokens:
            self._decode(ctx)
            if not ctx.plan.preempted:
                self._swap_in(ctx)
        return ctx.plan

    def _prefill(self, ctx: PlanContext) -> None:
        budget = self.limits.max_num_batched_tokens
        while self.waiting:
            request = self.waiting[0]
            if self._never(request):
                ctx.reject(self.waiting.popleft(), "the prompt does not fit memory above the watermark, or a step")
                continue
            hit = self.kv.lookup(request)
            new = request.num_tokens - hit.num_tokens
            if new > budget or len(self.running) >= self.limits.max_num_seqs:
                return
            output = request.prompt_len + request.max_tokens - request.num_tokens if self._reserves else 0
            if not ctx.admit(request, new, hit, reserve=self.reserve, lookahead=output):
                if refuse_if_hopeless(self, ctx, request):
                    continue
                return
            self.running.append(self.waiting.popleft())
            budget -= new

    def _never(self, request: Request) -> bool:
        size = self.kv.block_size
        needed = -(-request.num_tokens // size) * size
        too_big = needed + self.reserve > self.kv.capacity_tokens
        return too_big or request.num_tokens > self.limits.max_num_batched_tokens

    def _decode(self, ctx: PlanContext) -> None:
        queue, self.running = deque(self.running), []
        plenty = self._reserves or self.kv.usage().free >= len(queue) * self.kv.block_size
        while queue:
            request = queue.popleft()
            if pending(request):
                while not ((plenty or one_block_free(self.kv)) and ctx.extend(request, 1)):
                    victim = queue.pop() if queue else request
                    self._preempt(ctx, victim)
                    if victim is request:
                        break
            if request.state is State.RUNNING:
                self.running.append(request)

    def _preempt(self, ctx: PlanContext, victim: Request) -> None:
        if self.params.preemption_mode == "swap" and ctx.swap_out(victim):
            self.swapped = deque(sorted((*self.swapped, victim), key=lambda r: (r.arrival_ns, r.row)))
        else:
            ctx.preempt(victim)
            self.waiting.appendleft(victim)

    def _swap_in(self, ctx: PlanContext) -> None:
        budget = self.limits.max_num_batched_tokens - len(ctx.plan.tokens)
        while self.swapped and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            reserve = self.reserve if self.running else 0
            if not ctx.swap_in(self.swapped[0], 1, reserve=reserve):
                return
            self.running.append(self.swapped.popleft())
            budget -= 1

    def steady(self, plan: Plan) -> int:
        if may_find_more(self) and len(self.running) < self.limits.max_num_seqs:
            return 0
        return FOREVER if self._reserves else steps_with_blocks_free(self.kv, len(plan.tokens))

    def waiters(self) -> Iterator[Request]:
        return chain(self.swapped, self.waiting)

    def num_waiting(self) -> int:
        return len(self.swapped) + len(self.waiting)

    def drop_waiter(self, request: Request) -> None:
        (self.swapped if request in self.swapped else self.waiting).remove(request)
