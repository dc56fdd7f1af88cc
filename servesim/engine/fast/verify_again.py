"""Plans that only verify drafts again, made without the scheduler where its last plan implies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.cost import Batch
from servesim.contracts.plan import Plan
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


def verify_again(core: FastCore, now: int) -> tuple[bool, Step | None]:
    """Return whether the next plan is known, and its step, put in flight, or None if it is empty. If the scheduler must
    make the plan, memory that it would take may have been taken already."""
    before = core.last_plan
    assert before is not None
    if core.scheduler.num_waiting() or core.on_plan is not None:
        return False, None
    plan = FastPlan(core.next_step_id)
    plan.attention = before.attention
    if not _serve(core, before, plan):
        return False, None
    if not plan._tokens:
        core.last_plan, core.stands = plan, False
        return True, None
    batch = _batch(plan)
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
    return True, step


def _serve(core: FastCore, before: Plan, plan: FastPlan) -> bool:
    """Add to a plan all running requests but those whose last token is in flight. Return False if a request was not
    served before, needs other tokens than its next one, gets no memory, or is one for whose drafts there may be no
    tokens left: the scheduler may then verify fewer, which need less memory."""
    tokens, drafts, served, grow = plan._tokens, plan.drafts, before._tokens, core.kv.grow
    left = core.tokens_again
    limits, ahead = core.scheduler.limits, core.lookahead
    longest, asynchronous = limits.max_model_len, limits.async_scheduling
    for request in core.scheduler.running:
        computed, known, extra = request._num_computed_tokens, request._num_tokens, request.num_draft_tokens
        if asynchronous:
            coming = request._num_output_placeholders
            if coming > 0 and computed + 2 - coming >= request.prompt_len + request.max_tokens:
                continue
            known += coming
        if known - computed != 1 or computed < request.prompt_len or request not in served:
            return False
        left -= 1 + extra
        if left < 0 or computed + 1 + extra >= longest or not grow(request, 1 + extra, ahead):
            return False
        tokens[request] = 1 + extra
        if extra:
            drafts[request] = extra
    return True


def _batch(plan: FastPlan) -> Batch:
    """Return the batch of requests that each verify drafts."""
    contexts = [request._num_computed_tokens + new for request, new in plan._tokens.items()]
    count, reach = len(contexts), sum(contexts)
    total = count + sum(plan.drafts.values())
    return Batch(
        total,
        decode_count=count,
        decode_context_sum=reach,
        decode_context_sumsq=sum([context * context for context in contexts]),
        decode_context_max=max(contexts),
        queries_per_sequence=-(-total // count),
        sampled=count,
        attention=plan.attention,
        drafts=total - count,
        sampled_context=reach,
    )
