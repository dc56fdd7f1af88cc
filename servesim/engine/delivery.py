"""Where a token arrives: what a step sampled becomes part of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servesim.contracts.request import Request, State
from servesim.records.step import Late, Step

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore


def deliver(
    core: EngineCore, step: Step, before: int, now: int, tokens: Mapping[Request, int] | None = None
) -> tuple[list[Request], list[Request]]:
    """Deliver what a step sampled; the step before it was committed at `before`. Return the requests that ended with
    it, and those that still stand as they did when it was planned. `tokens`: see `EngineCore.commit`."""
    kept: list[Request] = []
    finished: list[Request] = []
    on_time = 0  # most get their last token from the step before: report the gap once
    late: list[Late] = []
    to_fork: list[Request] = []
    plain = tokens is None and not step.drafts and step.stale is None
    ended = State.FINISHED
    for request in step.sampled:
        if request.state >= ended:
            continue  # it ended with an earlier step; this one's token is thrown away
        if plain:
            request._num_output_placeholders -= 1
            request._num_tokens += 1
            delivered = 1
            kept.append(request)
        else:
            stale = step.stale is not None and request in step.stale
            if not stale:
                kept.append(request)
            delivered = _verify(core, step, request, tokens, stale)
            if delivered == 0:
                continue
        if request.first_token_ns < 0:
            request.first_token_ns = now
            if core.on_first is not None:
                core.on_first(request)
            if request.parent is not None and request.parent.unforked:
                to_fork.append(request)
            if delivered > 1:
                late.append((request.row, now, delivered))
        elif request._last_token_ns == before and delivered == 1:
            on_time += 1
        else:
            late.append((request.row, request._last_token_ns, delivered))
        request._last_token_ns = now
        core.tokens_since_output = 0
        if core.on_output is not None:
            core.on_output(request, delivered)
        if request._num_tokens >= request._end_tokens:
            finished.append(request)
    finished += tell(core, before, now, on_time, late, to_fork)
    return finished, kept


def tell(
    core: EngineCore, before: int, now: int, on_time: int, late: list[Late], to_fork: list[Request]
) -> list[Request]:
    """Report the gaps that a step ends: `on_time` since the step before it, and the late ones; fork the samples of
    prompts that it has computed. Return samples that end with that."""
    if on_time:
        core.on_gap(now - before, on_time)
    if late:
        core.on_late(now, late)
    return [sample for request in to_fork for sample in fork(core, request, now)]


def _verify(core: EngineCore, step: Step, request: Request, tokens: Mapping[Request, int] | None, stale: bool) -> int:
    """Account for what a request sampled: the drafts accepted, and one token more. Return the tokens it gets."""
    drafts = step.drafts.get(request, 0)
    sampled = 1 if tokens is None else tokens.get(request, 1)
    if tokens is None and drafts and core.speculator is not None and request not in step.dummies:
        depth, accepted = accepts(core, request, drafts)
        sampled += accepted
        if step.verified is None:
            step.verified = []
        step.verified.append((depth, accepted))
    request._num_output_placeholders -= 1 + drafts
    if drafts and sampled:
        core.spec_stats.add(drafts, sampled - 1)
    delivered = min(sampled, request._end_tokens - request._num_tokens)
    step.accepted += max(delivered - 1, 0)
    void = drafts - max(sampled - 1, 0) + sampled - delivered
    if void and not stale:
        request._num_computed_tokens -= void
        core.ledger.release(void)
        core.kv.rollback(request, void)
    request._num_tokens += delivered
    return delivered


def accepts(core: EngineCore, request: Request, drafts: int) -> tuple[int, int]:
    """Return how deep the drafts of a request reach, and how many of them its acceptance model takes."""
    assert core.speculator is not None
    assert core.acceptance is not None
    depth, width = core.speculator.depth(drafts), core.speculator.width
    return depth, core.acceptance.accepted(request, request._num_tokens - request.prompt_len, depth, width)


def fork(core: EngineCore, request: Request, now: int) -> list[Request]:
    """Let the samples of a request go on from its prompt by themselves, each with a first token of its own. Return
    those that end with that. Of one that was preempted meanwhile all compute the prompt again."""
    parent = request.parent
    assert parent is not None
    samples, outputs = parent.members[len(parent.sent) :], parent.outputs[len(parent.sent) :]
    parent.unforked = 0
    core.num_forked += len(samples)
    running = request.state is State.RUNNING
    for sample, output_len in zip(samples, outputs, strict=True):
        sample._end_tokens = sample.prompt_len + output_len
        sample._num_tokens = sample.prompt_len + 1
        sample.scheduled_ns, sample.first_token_ns, sample._last_token_ns = request.scheduled_ns, now, now
        sample.hit_tokens = sample.prompt_len
        sample.state = State.RUNNING if running else State.PREEMPTED
        if running:
            sample._num_computed_tokens = request._num_computed_tokens
            core.kv.fork(request, sample)
            core.ledger.hold(sample._num_computed_tokens)
    core.scheduler.on_fork(request, samples)
    return [sample for sample in samples if sample._num_tokens >= sample._end_tokens]
