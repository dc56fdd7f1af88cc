"""Plans that only verify drafts again, made without the scheduler where its last plan implies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.cost import Batch
from servesim.contracts.plan import Plan
from servesim.contracts.request import Request
from servesim.engine.fast.context import FastContext, FastPlan
from servesim.records.step import Step

if TYPE_CHECKING:
    from servesim.engine.fast.core import FastCore


def tokens_again(core: FastCore, ctx: FastContext, step: Step | None) -> int:
    """Return the maximum number of tokens of the plans that follow from this one of the scheduler while the queue is
    empty: they verify the drafts of its requests that have not ended, in the order of `running`. Return 0 if the
    scheduler must make the next plan."""
    speculator, plan = core.speculator, ctx.plan
    if step is None or not core.stands or not ctx.in_order or speculator is None or speculator.expands:
        return 0
    if ctx.has_state or core.hears_commits or core.connector is not None:
        return 0
    if plan.layout != "mixed" or plan.rejected or plan.preempted or plan.loading:
        return 0
    return step.batch.linear_tokens


def verify_again(core: FastCore, now: int) -> Step | None:
    """Plan the next step and put it in flight, or return None if the scheduler must make the plan. Memory that it would
    take may then have been taken already."""
    before = core.last_plan
    assert before is not None
    if core.scheduler.num_waiting() or core.on_plan is not None:
        return None
    plan = FastPlan(core.next_step_id)
    plan.attention = before.attention
    batch = _serve(core, before, plan)
    if batch is None or batch.linear_tokens > core.tokens_again:
        return None
    sampled = list(plan._tokens)
    for request, new in plan._tokens.items():
        request._num_computed_tokens += new
        request._num_output_placeholders += new
        request.num_draft_tokens = 0
    core.last_plan = plan
    core.stands, core.pure = len(sampled) == len(core.scheduler.running), True
    core.charge(plan, batch, sampled, now)
    step = Step(plan.step_id, batch, sampled, core.kv.usage(), plan.drafts, planned_ns=now)
    core.tokens_since_output += batch.linear_tokens
    core.in_flight.append(step)
    core.next_step_id += 1
    if core.checks:
        core.check_integrity()
    return step


def _serve(core: FastCore, before: Plan, plan: FastPlan) -> Batch | None:
    """Add to a plan all running requests but those whose last token is in flight, and return its batch. Return None if
    a request was not served before, needs other tokens than its next one, or gets no memory."""
    tokens, drafts, served, grow = plan._tokens, plan.drafts, before._tokens, core.kv.grow
    limits, ahead = core.scheduler.limits, core.lookahead
    longest, asynchronous = limits.max_model_len, limits.async_scheduling
    square = furthest = 0
    for request in core.scheduler.running:
        computed, known, extra = request._num_computed_tokens, request._num_tokens, request.num_draft_tokens
        if asynchronous:
            coming = request._num_output_placeholders
            if coming > 0 and computed + 2 - coming >= request.prompt_len + request.max_tokens:
                continue
            known += coming
        after = computed + 1 + extra
        if known - computed != 1 or computed < request.prompt_len or after >= longest or request not in served:
            return None
        if not grow(request, 1 + extra, ahead):
            return None
        tokens[request] = 1 + extra
        if extra:
            drafts[request] = extra
        square += after * after
        if after > furthest:
            furthest = after
    if not tokens:
        return None
    return _batch(tokens, drafts, plan.attention, square, furthest)


def _batch(tokens: dict[Request, int], drafts: dict[Request, int], attention: str, square: int, longest: int) -> Batch:
    """Return the batch of requests that each verify drafts."""
    total, count = sum(tokens.values()), len(tokens)
    reach = sum([request._num_computed_tokens for request in tokens]) + total
    return Batch(
        total,
        decode_count=count,
        decode_context_sum=reach,
        decode_context_sumsq=square,
        decode_context_max=longest,
        queries_per_sequence=-(-total // count),
        sampled=count,
        attention=attention,
        drafts=total - count,
        sampled_context=reach,
    )
