"""The vLLM V1 scheduler (0.33: vllm/v1/core/sched/scheduler.py, async_scheduler.py).

One rule, no phases: each step lets every request's computed tokens catch up with its known ones, running requests
before waiting ones, within a token budget. Prefill, chunked prefill, prefix hits, decode, and draft verification all
follow from this rule.

Left out ("no trace": only for features that a trace and its settings cannot request; "differs": plans may
differ from vLLM's):

| left out | why |
|---|---|
| pause states, `reset_prefix_cache`, streaming input | no trace: operator requests; a prompt arrives whole |
| encoder inputs, their budget and cache, `ec_connector`, cross-attention blocks | no trace: images and audio |
| `max_loras`, requests that wait for a grammar, drafts that it forbids | no trace: adapters, structured output |
| `skip_reading_prefix_cache`, `aux_output_connector` | no trace: prompt logprobs, routed experts |
| pooling and diffusion models, `prefix_replay_tokens`, HiSparse | no trace: features not modeled |
| `_reserve_prefill_lookahead` | no trace: multi-module MTP; `mtp` reapplies one module |
| zeroing and copies of blocks, events, statistics, metadata | no decision: for workers and observers |
| outputs, aborts, failed loads | elsewhere: servesim/engine/delivery.py, servesim/engine/core.py |
| `dynamic_sd_lookup` | elsewhere: policies/speculation/_length.py |
| `skip_drafts` | differs in cost, not in plans: drafts after a request's last token are charged |
| `_mamba_block_aligned_split`, hits within a block | differs for models with states: chunks end at any token |
| `next_decode_eligible_step` | differs if pp > 1: steps are not planned ahead, so none has to wait |
| `throttle_prefills` | differs for MoE ranks, dp > 1: each counts prefill_schedule_interval for itself |
| one token to compute, and loads, while prefill is held | differs if prefill_schedule_interval > 1: they are held too |
| `is_prefill_chunk` of a last chunk of one token | differs with drafts: it counts as a decode, so others are padded |
| `kv_holding_waiting` | differs by priority, or after a preemption: a request whose KV is here may wait |
| loads in `get_request_counts` | differs with long_prefill_token_threshold: loads are not counted as waiting |
| `_spec_decode_step_blocks` | differs with drafts and loads: no room is left for the drafts of others |
| `defer_block_free` | differs with loads, planned ahead: blocks that a step in flight may write are freed immediately |
| `drop_stale_output` | differs for prompts to hand off: output in flight at a preemption is delivered |
| `num_stale_output_tokens` | differs if pp > 2: a request may resume before its output in flight has arrived |
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import Hit, KVAllocator
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.contracts.scheduler import Limits, Scheduler, schedulers
from servesim.errors import UserError

from ._budget import Budget
from ._vllm_params import VllmParams


@mypyc_attr(allow_interpreted_subclasses=True)
class Vllm(Scheduler):
    """vLLM V1 scheduler: running first, then waiting, chunked by a token budget; preemption by recomputation."""

    Params: ClassVar[type[Any]] = VllmParams
    paper = "Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023"
    supports = frozenset({"async", "speculation", "remote_kv", "deferred", "external"})

    def __init__(self, params: VllmParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self._rules = params  # vLLM's params, even in a subclass
        self.lookahead = params.num_lookahead_tokens
        self._by_priority = params.policy == "priority"
        self._heap: list[tuple[int, int, str, int, Request]] = []  # waiting queue for "priority"
        self._max_scheduled = params.max_num_scheduled_tokens or limits.max_num_batched_tokens
        if params.draft_slots_per_request >= limits.max_num_batched_tokens:
            raise UserError(
                f"scheduler {self.name}: max_num_batched_tokens={limits.max_num_batched_tokens} leaves no token after "
                f"reserving draft_slots_per_request={params.draft_slots_per_request} for a request with drafts"
            )
        self._max_running = params.max_num_active_seqs or limits.max_num_seqs
        self._steps_since_prefill = 0
        self._drained = True  # whether the last plan to look at the waiting queue emptied it
        self._chunks: set[Request] = set()  # running requests whose last step did not finish their prompt
        self._reserve = int(params.watermark * kv.num_blocks) * kv.block_size

    def plan(self, ctx: PlanContext) -> Plan:
        budget = Budget(self._max_scheduled, self.limits.max_num_batched_tokens, self._rules.draft_slots_per_request)
        threshold = self._chunk_threshold()
        hold = self._holds_prefill()
        self._plan_running(ctx, budget, threshold, hold)
        if not ctx.plan.preempted and not hold:
            self._plan_waiting(ctx, budget, threshold)
        if self._rules.prefill_schedule_interval > 1 and ctx.plan.tokens:
            self._note_prefill(ctx.plan, hold)
        return ctx.plan

    def _plan_running(self, ctx: PlanContext, budget: Budget, threshold: int, hold: bool) -> None:
        steps = 1 if self._rules.prefill_schedule_interval > 1 else None  # counts plans
        queue: Sequence[Request] = self.running
        if not (hold and self._chunks):  # a last one-token chunk is not a decode
            queue = ctx.decode(queue, budget.left - budget.extra * len(queue), steps=steps)
            budget.take(ctx.num_tokens, len(self.running) - len(queue))
        max_len = self.limits.max_model_len
        for request in list(queue):
            if budget.left <= 0:
                return
            if request.state is not State.RUNNING:
                continue  # preempted for an earlier request
            if hold and request in self._chunks:
                continue
            new, drafts = ctx.due(request), request.num_draft_tokens
            if new != 1 or drafts or request.num_computed_tokens + 2 > max_len:
                new, drafts = self._wanted(request, new, threshold, budget.left)
                if new <= 0:
                    continue
            while not ctx.extend(request, new, lookahead=self.lookahead, drafts=drafts):
                victim, refund = self._preempt(ctx)
                budget.give_back(refund)
                if victim is request:
                    break
            else:
                budget.take(new)
                request.num_draft_tokens = 0
                continue
            if not self._by_priority:
                return

    def _wanted(self, request: Request, due: int, threshold: int, left: int) -> tuple[int, int]:
        """Return the number of tokens to schedule, within the limits, for a request with `due` known tokens left to
        compute, and how many of them are drafts."""
        if due <= 0:
            return 0, 0
        new = due + request.num_draft_tokens
        if 0 < threshold < new:
            new = threshold
        new = min(new, left, self.limits.max_model_len - request.num_computed_tokens - 1)
        return new, max(min(request.num_draft_tokens, new - due), 0)

    def _preempt(self, ctx: PlanContext) -> tuple[Request, int]:
        """Preempt the latest arrival or, if ordered by priority, the least urgent request; return it and its number of
        tokens in the current plan."""
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
        deferred: list[Request] = []
        self._admit_waiting(ctx, budget, threshold, deferred)
        for request in reversed(deferred):
            self._requeue(request)

    def _admit_waiting(self, ctx: PlanContext, budget: Budget, threshold: int, deferred: list[Request]) -> None:
        """Admit requests from the queue's front while budget and memory allow; move deferred ones to `deferred`."""
        params = self._rules
        uniform = params.num_speculative_tokens > 0 and self.num_waiting() > 0 and self._only_decodes(ctx.plan)
        owed: int | None = None
        while self.num_waiting() and budget.left > 0 and len(self.running) < self._max_running:
            request = self._head()
            hit = ctx.lookup(request)
            if ctx.connector is not None and ctx.deferred(request, hit):
                self._pop_head()
                deferred.append(request)
                continue
            external = 0
            if ctx.connector is not None:
                owed = self._owed(ctx) if owed is None else owed
                if (taken := self._fetch(ctx, request, hit, owed)) is not None:
                    if not taken:
                        return
                    self._pop_head()
                    owed += self._short(request)
                    continue
                external = ctx.external(request, hit)
            known, base = request.num_tokens, hit.num_tokens + external
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
            if new > budget.left:
                new = budget.left
            if drafts >= new:
                drafts = new - 1
            waited = self._short(request) if request in ctx.fetched else 0
            admitted = ctx.admit(
                request,
                new,
                hit,
                full_tokens=known if params.scheduler_reserve_full_isl else 0,
                reserve=self._reserve if self.running else 0,
                lookahead=self.lookahead,
                drafts=drafts,
                external=external,
            )
            if not admitted:
                return
            self._pop_head()
            self.running.append(request)
            if owed is not None:
                owed += sum([self._short(r) for r in _begun([request])]) - waited
            budget.take(new)

    def _owed(self, ctx: PlanContext) -> int:
        """Return the slots that prompts in progress, locally or remotely, still need."""
        return sum([self._short(r) for r in [*_begun(self.running), *ctx.fetched] if r.state < State.FINISHED])

    def _short(self, request: Request) -> int:
        """Return the slots that a prompt needs beyond those it has, in whole blocks."""
        size = self.kv.block_size
        tokens = min(request.num_tokens, self.limits.max_model_len) - self.kv.slots(request)
        return -(-tokens // size) * size if tokens > 0 else 0

    def _fetch(self, ctx: PlanContext, request: Request, hit: Hit, owed: int) -> bool | None:
        """Make the head of the queue wait for remote KV, if there is any. Prompts already in progress keep the `owed`
        slots."""
        return ctx.fetch(
            request,
            hit,
            full_tokens=request.num_tokens if self._rules.scheduler_reserve_full_isl else 0,
            reserve=self._reserve if self.running else 0,
            owed=owed,
        )

    def _only_decodes(self, plan: Plan) -> bool | None:
        """Return whether all running requests scheduled so far are decodes, or None if none was scheduled."""
        if not plan.tokens:
            return None
        return all(n == 1 + plan.drafts.get(r, 0) for r, n in plan.tokens.items())

    def _chunk_threshold(self) -> int:
        threshold: int = self._rules.long_prefill_token_threshold
        if not threshold or (others := len(self.running) + self.num_waiting()) == 1:
            return 0
        if self._rules.long_prefill_token_threshold_adaptive:
            return max(threshold, self.limits.max_num_batched_tokens // max(others, 1))
        return threshold

    # Prefill interval.

    def _holds_prefill(self) -> bool:
        interval = self._rules.prefill_schedule_interval
        if interval <= 1 or self._steps_since_prefill + 1 >= interval or not self._drained:
            return False
        return any(r not in self._chunks for r in self.running)

    def _note_prefill(self, plan: Plan, held: bool) -> None:
        tokens = plan.tokens
        prefill = bool(plan.admitted or plan.resumed) or any(r in self._chunks for r in tokens)
        self._steps_since_prefill = 0 if prefill else self._steps_since_prefill + 1
        if not held and not plan.preempted:
            self._drained = not self.num_waiting()
        unfinished = {
            r for r, n in tokens.items() if r.num_computed_tokens + n < r.num_tokens + r.num_output_placeholders
        }
        self._chunks = {r for r in self.running if r in (unfinished if r in tokens else self._chunks)}

    # Queues.

    def on_arrival(self, request: Request) -> None:
        if self._by_priority:
            self._push(request)
        elif request.num_computed_tokens:
            self._take_back(request)
        else:
            self.waiting.append(request)

    def _take_back(self, request: Request) -> None:
        """Put a request whose KV has arrived at the front of the queue, behind earlier such requests."""
        at = 0
        for each in self.waiting:
            if not each.num_computed_tokens or (each.arrival_ns, each.row) > (request.arrival_ns, request.row):
                break
            at += 1
        self.waiting.insert(at, request)

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


def _begun(requests: list[Request]) -> list[Request]:
    """Return those of some running requests that may still compute their prompts."""
    return [r for r in requests if r.first_token_ns < 0 or r.num_preemptions > 0 or r.num_migrations > 0]


schedulers.register("vllm")(Vllm)
