"""Results of verifying a step's drafts, computed in bulk: the tokens that each request gets, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servesim.contracts.kv import KVAllocator
from servesim.contracts.request import Request, State
from servesim.engine.delivery import tell
from servesim.engine.drafts import accepts
from servesim.engine.fast.acceptance_walk import DEEPEST, Walk
from servesim.records.step import Late, Step

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore


def gain(core: EngineCore, step: Step, request: Request) -> int:
    """Return the number of tokens a request gets from a step: the accepted drafts plus one."""
    drafts = step.drafts.get(request, 0)
    if not drafts or request in step.dummies:
        return 1
    assert core.speculator is not None
    depth = core.speculator.depth(drafts)
    if not _walks(core, depth):
        return accepts(core, request, drafts)[1] + 1
    walk = _next(core, request, depth)
    return walk.gains[walk.index]


def _walks(core: EngineCore, depth: int) -> bool:
    """Return whether walks can be used, i.e. drafts are not too deep and will probably stay equally deep."""
    assert core.speculator is not None
    return depth <= DEEPEST and core.speculator.steady()


def _next(core: EngineCore, request: Request, depth: int) -> Walk:
    """Return a request's walk, with its next step computed."""
    assert core.speculator is not None
    assert core.acceptance is not None
    walk = Walk.of(request, request._num_tokens, depth)
    if walk.index == len(walk.gains):
        walk.see(request, walk.index, 0, core.acceptance, core.speculator.width)
    return walk


def deliver_verified(core: EngineCore, step: Step, before: int, now: int) -> tuple[list[Request], list[Request]]:
    """Deliver a step with drafts as `delivery.deliver` does."""
    speculator, kv, drafts_of, dummies, stale = core.speculator, core.kv, step.drafts, step.dummies, step.stale
    assert speculator is not None
    kept: list[Request] = []
    finished: list[Request] = []
    late: list[Late] = []
    to_fork: list[Request] = []
    verified: list[tuple[int, int]] = []
    counted, counts = 0, bytearray()  # token count of each request with `counted` drafts
    on_time = depth = of_depth = 0
    walks, ended = False, State.FINISHED
    rollback: Any = type(kv).rollback
    takes_back = rollback is not KVAllocator.rollback
    for request in step.sampled:
        if request.state >= ended:
            continue
        if stale is None or request not in stale:
            kept.append(request)
        drafts, known, delivered = drafts_of.get(request, 0), request._num_tokens, 1
        if drafts:
            if drafts != of_depth:
                of_depth, depth = drafts, speculator.depth(drafts)
                walks = _walks(core, depth)
            if not dummies or request not in dummies:
                if walks:
                    walk = request._walk
                    if (
                        not isinstance(walk, Walk)
                        or walk.tokens != known
                        or walk.depth != depth
                        or walk.index == len(walk.gains)
                    ):
                        walk = _next(core, request, depth)
                    delivered = walk.gains[walk.index]
                    walk.index += 1
                    walk.tokens = known + delivered
                else:
                    delivered += accepts(core, request, drafts)[1]
                verified.append((depth, delivered - 1))
            if drafts == counted and delivered <= DEEPEST:
                counts.append(delivered)
            elif not counts and delivered <= DEEPEST:
                counted = drafts
                counts.append(delivered)
            else:
                core.spec_stats.add(drafts, delivered - 1)
            left = request._end_tokens - known
            if delivered > left:
                delivered = left
            step.accepted += delivered - 1
            void = drafts + 1 - delivered
            if void and (stale is None or request not in stale):
                request._num_computed_tokens -= void
                core.ledger.release(void)
                if takes_back:
                    kv.rollback(request, void)
        request._num_output_placeholders -= 1 + drafts
        request._num_tokens = known + delivered
        if request.first_token_ns < 0:
            request.first_token_ns = now
            if core.on_first is not None:
                core.on_first(request)
            if request.parent is not None and request.parent.unforked:
                to_fork.append(request)
            if delivered > 1:
                late.append((request.row, now, delivered))
        elif delivered == 1 and request._last_token_ns == before:
            on_time += 1
        else:
            late.append((request.row, request._last_token_ns, delivered))
        request._last_token_ns = now
        if core.on_output is not None:
            core.on_output(request, delivered)
        if known + delivered >= request._end_tokens:
            finished.append(request)
        core.tokens_since_output = 0
    if verified:
        step.verified = verified
    if counts:
        core.spec_stats.add_many(counted, counts)
    finished += tell(core, before, now, on_time, late, to_fork)
    return finished, kept
