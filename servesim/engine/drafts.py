"""Drafts of a step: how many are made after it, which of its tokens are drafts, and how many are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servesim.contracts.cost import Batch
from servesim.contracts.plan import Plan
from servesim.contracts.request import Request
from servesim.errors import PolicyError
from servesim.records.step import Step

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore


def decide(core: EngineCore, batch: Batch, sampled: list[Request]) -> None:
    """Decide how many drafts are made after this step. With asynchronous scheduling, the next plan assumes that number
    immediately."""
    speculator = core.speculator
    assert speculator is not None
    k = speculator.limit(batch)
    if not 0 <= k <= speculator.max_drafts:
        raise PolicyError(f"speculation {speculator.name}: limit returns {k}, not a number from 0 to its max_drafts")
    batch.draft_k = k
    if core.scheduler.limits.async_scheduling:
        nodes = speculator.verified(k)
        core.spec_stats.proposed += nodes * len(sampled)
        for request in sampled:
            request.num_draft_tokens = nodes


def note(step: Step, plan: Plan) -> None:
    """Record on a step which of its plan's tokens are drafts."""
    step.drafts = plan.drafts
    if plan.admitted or plan.resumed:
        step.dummies = frozenset(plan.admitted + plan.resumed)


def verify(core: EngineCore, step: Step, request: Request, tokens: Mapping[Request, int] | None, stale: bool) -> int:
    """Account for the tokens that a request sampled: the accepted drafts plus one. Return the number of tokens
    delivered to it."""
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
    """Return the depth of a request's drafts and the number of them that its acceptance model accepts."""
    assert core.speculator is not None
    assert core.acceptance is not None
    depth, width = core.speculator.depth(drafts), core.speculator.width
    return depth, core.acceptance.accepted(request, request._num_tokens - request.prompt_len, depth, width)


def propose(core: EngineCore, k: int, requests: list[Request]) -> None:
    """Attach drafts to the requests that have just received a token."""
    assert core.speculator is not None
    assert core.acceptance is not None
    for request in requests:
        found = core.acceptance.available(request, request._num_tokens - request.prompt_len, k) if k else 0
        request.num_draft_tokens = core.speculator.verified(found)
        core.spec_stats.proposed += request.num_draft_tokens
