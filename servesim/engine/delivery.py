"""Delivery of a step's sampled tokens to its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servesim.contracts.request import FINISHED, Request
from servesim.engine.drafts import verify
from servesim.engine.samples import fork
from servesim.records.step import Late, Step

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore


def deliver(
    core: EngineCore, step: Step, before: int, now: int, tokens: Mapping[Request, int] | None = None
) -> tuple[list[Request], list[Request]]:
    """Deliver the tokens that a step sampled. The step before it was committed at `before`. Return the requests that
    ended with this step and those that have the same state as when it was planned. For `tokens`, see
    `EngineCore.commit`."""
    kept: list[Request] = []
    finished: list[Request] = []
    on_time = 0  # most got a token from the previous step, so report gaps together
    late: list[Late] = []
    to_fork: list[Request] = []
    plain = tokens is None and not step.drafts and step.stale is None
    for request in step.sampled:
        if request.state >= FINISHED:
            continue  # ended with an earlier step, so this token is discarded
        if plain:
            request._num_output_placeholders -= 1
            request._num_tokens += 1
            delivered = 1
            kept.append(request)
        else:
            stale = step.stale is not None and request in step.stale
            if not stale:
                kept.append(request)
            delivered = verify(core, step, request, tokens, stale)
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
    if on_time or late or to_fork:
        finished += tell(core, before, now, on_time, late, to_fork)
    return finished, kept


def tell(
    core: EngineCore, before: int, now: int, on_time: int, late: list[Late], to_fork: list[Request]
) -> list[Request]:
    """Report the gaps that end with a step: `on_time` is the number of gaps that began with the previous step, and
    `late` lists the others. Fork the samples of prompts that the step has computed, and return the samples that end
    with it."""
    if on_time:
        core.on_gap(now - before, on_time)
    if late:
        core.on_late(now, late)
    return [sample for request in to_fork for sample in fork(core, request, now)]
