"""Requests that have lost their replica and are sent again."""

from __future__ import annotations

from servesim.contracts.request import LAST, Request, State
from servesim.workload.samples import PROMPTS


def renew(request: Request) -> None:
    """Reset a request that has no output token yet to its state on arrival."""
    _leave_replica(request)
    request.state = State.WAITING
    request.scheduled_ns = request._last_token_ns = -1
    request._num_tokens = request.prompt_len
    request.hit_tokens = request.loaded_tokens = request.lost_tokens = 0


def prompt_again(prompt: Request) -> Request:
    """Return a request that computes again the prompt that another one has computed for several samples."""
    return Request(
        prompt.row + PROMPTS,
        prompt.name,
        prompt.prompt_len,
        prompt.max_tokens,
        prompt.arrival_ns,
        prompt.priority,
        prompt.salt,
        prompt.content,
        prompt.session,
        prompt.tenant,
        prompt.slo_class,
        prompt.predicted_output_len,
        _stops=prompt._stops,
        parent=prompt.parent,
        sample=prompt.sample,
        model=prompt.model,
    )


def migrate(request: Request) -> None:
    """Let a request that has output tokens go on at another replica: these are then part of its prompt, and the limit
    of its tokens stays what it was (the Migration operator of ai-dynamo's frontend, migration.rs). What was computed is
    lost, as by a preemption; the time of its first token and what is known of its first admission are kept."""
    leg, lost = request.leg, min(request._num_computed_tokens, request._num_tokens - 1)
    if leg is not None:
        request.scheduled_ns, request.hit_tokens = leg.scheduled_ns, leg.hit_tokens
    _leave_replica(request)
    request.state, request.lost_tokens = State.PREEMPTED, max(lost, 0)
    request.num_migrations += 1


def _leave_replica(request: Request) -> None:
    """Reset what a request was to the replica that it has lost."""
    request.reason, request.replica, request.leg, request.finished_ns = "", -1, None, -1
    request._num_computed_tokens = request._num_output_placeholders = 0
    request.num_draft_tokens = request.being_read = 0
    request._order, request._walk, request._keeper = LAST, None, None
