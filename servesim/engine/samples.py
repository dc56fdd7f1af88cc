"""Multiple samples of one request, forked from the first one when the prompt has been computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts.request import Request, State

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore


def fork(core: EngineCore, request: Request, now: int) -> list[Request]:
    """Let the samples of a request continue from its prompt independently, each with its own first token. Return those
    that end with that token. If the request has since been preempted, all samples recompute the prompt."""
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
        if core.on_first is not None:
            core.on_first(sample)
        if core.on_output is not None:
            core.on_output(sample, 1)
        if running:
            sample._num_computed_tokens = request._num_computed_tokens
            core.kv.fork(request, sample)
            core.ledger.hold(sample._num_computed_tokens)
    core.scheduler.on_fork(request, samples)
    return [sample for sample in samples if sample._num_tokens >= sample._end_tokens]
