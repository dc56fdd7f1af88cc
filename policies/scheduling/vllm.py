"""The vLLM V1 scheduler (0.33: vllm/v1/core/sched/scheduler.py, async_scheduler.py).

One rule, no phases: each step lets every request's computed tokens catch up with its known ones, running
requests before waiting ones, within a token budget. Prefill, chunked prefill, prefix hits, decode and
verification of drafts are all this rule.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.contracts.scheduler import Limits, Scheduler, schedulers

from ._budget import Budget
from ._vllm_params import VllmParams

if TYPE_CHECKING:
    from servesim.engine.lockstep import Lockstep


@mypyc_attr(allow_interpreted_subclasses=True)
class Vllm(Scheduler):
    """vLLM V1: running first, then waiting, chunked by a token budget; preemption by recomputation."""

    Params: ClassVar[type[Any]] = VllmParams
    paper = "Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023"
    supports = frozenset({"async", "speculation"})

    def __init__(self, params: VllmParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.lookahead = params.num_lookahead_tokens
        self._by_priority = params.policy == "priority"
        self._heap: list[tuple[int, int, str, int, Request]] = []  # the waiting queue under "priority"
        self._max_scheduled = params.max_num_scheduled_tokens or limits.max_num_batched_tokens
        self._max_running = params.max_num_active_seqs or limits.max_num_seqs
        self._max_alike = min(self._max_scheduled, limits.max_num_batched_tokens)  # requests of one token in a step
        self._steps_since_prefill = 0
        self._drained = True  # whether the last plan open to prefill emptied the waiting queue
        self._kv_shares = kv.shares
        self._apart: list[Request] = []  # running requests that are not in lockstep and may do something

    def plan(self, ctx: PlanContext) -> Plan:
        lockstep = ctx.lockstep
        if lockstep is not None and lockstep.members and self.plans_lockstep_only(lockstep):
            lockstep.retire()
            if lockstep.extend(ctx.plan):
                return ctx.plan
        budget = Budget(self._max_scheduled, self.limits.max_num_batched_tokens, self.params.draft_slots_per_request)
        threshold = self._chunk_threshold()
        hold = self._holds_prefill()
        self._plan_running(ctx, budget, threshold, hold, self._extend_lockstep(ctx, budget))
        if not ctx.plan.preempted and not hold:
            self._plan_waiting(ctx, budget, threshold)
        if self.params.prefill_schedule_interval > 1 and ctx.plan.tokens:
            self._note_prefill(ctx.plan, hold)
        if lockstep is not None and self._apart and not ctx.plan.preempted:
            self._apart = lockstep.follow(self._apart, ctx.plan)
        return ctx.plan

    def _extend_lockstep(self, ctx: PlanContext, budget: Budget) -> list[Request]:
        """One token for all that decode in lockstep, who come first; the running requests that are left."""
        lockstep = ctx.lockstep
        if lockstep is None:
            return self.running
        lockstep.retire()
        if len(lockstep.members) > budget.left or not lockstep.extend(ctx.plan):
            lockstep.dissolve(ctx.plan)
            self._apart.clear()
            return self.running
        budget.take(len(lockstep.members))
        return self._apart if lockstep.members else self.running

    def _plan_running(
        self, ctx: PlanContext, budget: Budget, threshold: int, hold: bool, queue: list[Request]
    ) -> None:
        asynchronous = self.limits.async_scheduling
        lookahead, max_len = self.lookahead, self.limits.max_model_len
        tokens, plan_drafts, grow = ctx.plan.tokens, ctx.plan.drafts, ctx.kv.grow
        lockstep = ctx.lockstep
        in_order = lockstep is not None  # whether all before this one are in lockstep
        apart: list[Request] = []
        index = 0
        while index < len(queue) and budget.left > 0:
            request = queue[index]
            index += 1
            apart.append(request)
            computed, known = request.num_computed_tokens, request.num_tokens
            if asynchronous:
                placeholders = request.num_output_placeholders
                if placeholders > 0 and computed + 2 - placeholders >= request.prompt_len + request.max_tokens:
                    in_order = False
                    continue  # what is in flight reaches the length cap already
                known += placeholders
            if hold and computed < known - 1:
                continue
            new = known + request.num_draft_tokens - computed
            decodes = new == 1
            if new > 1:
                if 0 < threshold < new:
                    new = threshold
                new = min(new, budget.left)
            if computed + new >= max_len:
                new = max_len - computed - 1
            if new <= 0:
                in_order = False
                continue
            while not grow(request, new, lookahead):
                if lockstep is not None:
                    lockstep.dissolve(ctx.plan)
                    tokens, in_order = ctx.plan.tokens, False
                    if queue is not self.running:
                        queue, index = self.running, self.running.index(request) + 1
                victim, refund = self._preempt(ctx)
                budget.give_back(refund)
                if refund:  # it stood before this request in the running list
                    index -= 1
                if victim is request:
                    break
            else:
                budget.take(new)
                if in_order and decodes and lockstep is not None and lockstep.join(request, ctx.plan):
                    apart.pop()
                    continue
                in_order = False
                tokens[request] = new
                drafts = request.num_draft_tokens
                if drafts:
                    room = new + computed - known
                    if room > 0:
                        plan_drafts[request] = drafts if drafts < room else room
                    request.num_draft_tokens = 0
                continue
            if not self._by_priority:
                break
            index -= 1  # the list closed up over the request that gave way to itself
        if lockstep is not None:
            self._apart = apart + queue[index:]

    def _preempt(self, ctx: PlanContext) -> tuple[Request, int]:
        """Preempt the last comer, or the least urgent; the tokens it had in this very plan come back."""
        if self._by_priority:
            victim = max(self.running, key=lambda r: (r.priority, r.arrival_ns))
            self.running.remove(victim)
        else:
            victim = self.running.pop()
        refund = ctx.unschedule(victim)
        ctx.preempt(victim)
        self._requeue(victim)
        return victim, refund

    def _plan_waiting(self, ctx: PlanContext, budget: Budget, threshold: int) -> None:
        params = self.params
        uniform = params.num_speculative_tokens > 0 and self._only_decodes(ctx.plan)
        while self.num_waiting() and budget.left > 0 and len(self.running) < self._max_running:
            request = self._head()
            hit = self.kv.lookup(request)
            known, base = request.num_tokens, hit.num_tokens
            new, drafts = known - base, 0
            if new == 1 and (base > 0 if uniform is None else uniform):
                drafts = params.num_speculative_tokens  # dummies: keep the decode batch uniform
                if base + 2 + drafts > self.limits.max_model_len:
                    drafts = 0
                new += drafts
                if new > budget.left:
                    return
            if 0 < threshold < new:
                new = threshold
            if not params.enable_chunked_prefill and new > budget.left:
                return
            new = min(new, budget.left)
            drafts = min(drafts, new - 1)
            admitted = ctx.admit(
                request,
                new,
                hit,
                full_tokens=known if params.scheduler_reserve_full_isl else 0,
                reserve=self._watermark() if self.running else 0,
                lookahead=self.lookahead,
                drafts=drafts,
            )
            if not admitted:
                return
            self._pop_head()
            self.running.append(request)
            if ctx.lockstep is not None:
                self._apart.append(request)
            budget.take(new)

    def _only_decodes(self, plan: Plan) -> bool | None:
        """Whether the running requests scheduled so far all decode; None: none was scheduled."""
        if not plan.tokens:
            return None
        return all(n == 1 + plan.drafts.get(r, 0) for r, n in plan.tokens.items())

    def _chunk_threshold(self) -> int:
        threshold: int = self.params.long_prefill_token_threshold
        others = len(self.running) + self.num_waiting()
        if not threshold or others == 1:
            return 0
        if self.params.long_prefill_token_threshold_adaptive:
            return max(threshold, self.limits.max_num_batched_tokens // max(others, 1))
        return threshold

    def _watermark(self) -> int:
        return int(self.params.watermark * self.kv.num_blocks) * self.kv.block_size

    # Prefill interval.

    def _holds_prefill(self) -> bool:
        interval = self.params.prefill_schedule_interval
        if interval <= 1 or self._steps_since_prefill + 1 >= interval or not self._drained:
            return False
        return any(r.num_computed_tokens >= r.num_tokens - 1 for r in self.running)

    def _note_prefill(self, plan: Plan, held: bool) -> None:
        prefill = bool(plan.admitted or plan.resumed) or not self._only_decodes(plan)
        self._steps_since_prefill = 0 if prefill else self._steps_since_prefill + 1
        if not held:
            self._drained = not self.num_waiting()

    # Fast-forward.

    def keeps_lockstep(self) -> bool:
        return type(self) is Vllm and self.serves_in_order()

    def serves_in_order(self) -> bool:
        """Whether the parameters leave running requests in the order in which they were admitted, none held back."""
        params = self.params
        drafts = params.num_speculative_tokens or params.draft_slots_per_request or self.lookahead
        held_back = params.long_prefill_token_threshold or params.prefill_schedule_interval > 1
        return not (drafts or held_back or self._by_priority)

    def plans_lockstep_only(self, lockstep: Lockstep) -> bool:
        return not self._apart and not self.num_waiting() and len(lockstep.members) <= self._max_alike

    def steady_as_some_retire(self, plan: Plan) -> bool:
        if not self._apart and not self.num_waiting():
            return True
        # Others wait: for memory or a slot, unless the budget alone held them back.
        return plan.together < self._max_alike and self.params.enable_chunked_prefill

    def steady(self, plan: Plan) -> int:
        if not self._holds(plan):
            return 0
        if plan.together:
            return 0 if plan.tokens else 1 << 30
        most = max(plan.tokens.values())
        if not self.limits.async_scheduling and most == 1:
            return 1 << 30
        # In flight already, the token before the cap ends a request's plans one step before its outputs.
        max_len = self.limits.max_model_len
        return (
            min(
                min(r.prompt_len + r.max_tokens - r.num_tokens - 2, max_len - r.num_computed_tokens - 1)
                for r in plan.tokens
            )
            // most
        )

    def steady_drafts(self, plan: Plan, placeholders: int) -> tuple[int, Sequence[int]]:
        if type(self).steady is not Vllm.steady:
            return super().steady_drafts(plan, placeholders)
        if not self._holds(plan):
            return 0, ()
        longest = self.limits.max_model_len - placeholders
        if not self.limits.async_scheduling:
            return 1 << 30, [longest] * len(plan.tokens)
        caps = [r.prompt_len + r.max_tokens - 2 for r in plan.tokens]
        return 1 << 30, caps if max(caps) <= longest else [min(cap, longest) for cap in caps]

    def _holds(self, plan: Plan) -> bool:
        """Whether the next plan may be the same, lengths apart."""
        if self.params.prefill_schedule_interval > 1 or (self.lookahead and not plan.drafts):
            return False
        slots_left = len(self.running) < self._max_running
        if not (self._kv_shares and slots_left and self.num_waiting()):
            return True
        head, params = self._head(), self.params
        if head.content is not None:
            return False  # what is being generated may be a prefix of it: it then needs less
        # Preempted, it finds what it left. As that is evicted, a first chunk of the same length ends earlier.
        whole = params.scheduler_reserve_full_isl and not params.num_speculative_tokens
        return head.state is State.WAITING or whole

    # Queues.

    def on_arrival(self, request: Request) -> None:
        if self._by_priority:
            self._push(request)
        else:
            self.waiting.append(request)

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request] | None:
        for request in requests:
            if request in self._apart:
                self._apart.remove(request)
        return super().on_finish(requests)

    def drop_waiter(self, request: Request) -> None:
        if self._by_priority:
            self._heap = [entry for entry in self._heap if entry[-1] is not request]
            heapq.heapify(self._heap)
        else:
            self.waiting.remove(request)

    def waiters(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap)) if self._by_priority else iter(self.waiting)

    def num_waiting(self) -> int:
        return len(self._heap) if self._by_priority else len(self.waiting)

    def _head(self) -> Request:
        return self._heap[0][-1] if self._by_priority else self.waiting[0]

    def _pop_head(self) -> None:
        if self._by_priority:
            heapq.heappop(self._heap)
        else:
            self.waiting.popleft()

    def _requeue(self, request: Request) -> None:
        if self._by_priority:
            self._push(request)
        else:
            self.waiting.appendleft(request)

    def _push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.priority, request.arrival_ns, request.name, request.row, request))


schedulers.register("vllm")(Vllm)
