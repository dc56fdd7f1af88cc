"""The plain state machine driven from outside, one step at a time: ranks that wait for each other after every step."""

from __future__ import annotations

from servesim.contracts import Request
from servesim.engine.core import EngineCore
from tests.support.worlds import ToyCost, World, toy_trace

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples


def rank(requests: list[Request]) -> EngineCore:
    core = World(toy_trace([0], [1], [1])).core()
    for request in requests:
        core.add(request, request.max_tokens, 0)
    return core


def run_under_barrier(ranks: list[EngineCore]) -> list[tuple[int, list[int]]]:
    """Step all ranks together, each step as long as the slowest rank takes (data-parallel ranks of experts); when each
    step ended, and what each rank computed in it."""
    now, seen = 0, []
    while any(core.num_unfinished for core in ranks):
        steps = [core.plan(now) for core in ranks]
        now += max(COST.price(step.batch).ns for step in steps if step is not None)
        for core, step in zip(ranks, steps, strict=True):
            if step is not None:
                core.commit(now)
        seen.append((now, [step.batch.linear_tokens if step is not None else 0 for step in steps]))
    return seen


def test_a_rank_with_little_to_do_waits_for_the_one_with_most() -> None:
    short, long = Request(0, "short", 10, 2, 0), Request(1, "long", 200, 4, 0)
    seen = run_under_barrier([rank([short]), rank([long])])
    assert seen == [(301, [10, 200]), (403, [1, 1]), (505, [0, 1]), (607, [0, 1])]
    assert (short.first_token_ns, short.finished_ns) == (301, 403)
    assert (long.first_token_ns, long.finished_ns) == (301, 607)
