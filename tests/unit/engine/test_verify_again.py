"""Drafts verified again without the scheduler: as it would have planned, and only where its last plan implies that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from servesim.contracts import Plan, PlanContext, Request, Scheduler
from servesim.policies.scheduling.vllm import Vllm
from tests.property.test_fast_equals_reference import compared
from tests.support.worlds import World, toy_trace

HERE = str(Path(__file__))


class Asked(Vllm):
    """Keeps the number of its plans in a list, which is the same object whatever it holds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[int] = []

    def plan(self, ctx: PlanContext) -> Plan:
        self.steps.append(ctx.step_id)
        return super().plan(ctx)


class Newest(Scheduler):
    """Serves the newest request first."""

    supports = frozenset({"async"})

    def plan(self, ctx: PlanContext) -> Plan:
        for request in ctx.decode(self.running[::-1], 1000):
            if (new := ctx.due(request)) > 0:
                ctx.extend(request, new + request.num_draft_tokens, drafts=request.num_draft_tokens)
                request.num_draft_tokens = 0
        while self.waiting and ctx.admit(self.waiting[0], self.waiting[0].num_tokens):
            self.running.append(self.waiting.popleft())
        return ctx.plan


class Committing(Vllm):
    """Serves a request that has eight tokens last from then on."""

    def commit(self, step_id: int, sampled: Any) -> None:
        for request in [r for r in self.running if 8 <= r._num_tokens - r.prompt_len < 12]:
            self._to_the_end(request)

    def _to_the_end(self, request: Request) -> None:
        self.running.remove(request)
        self.running.append(request)


def drafting(trace: Any, **more: Any) -> World:
    given: dict[str, Any] = {"speculation": "eagle:k=2", "acceptance": "independent:alpha=0.5", "num_blocks": 100}
    return World(trace, **{**given, "depth": 2, "asynchronous": True, **more})


def test_the_scheduler_is_asked_once_for_each_arrival_and_where_the_last_token_is_in_flight() -> None:
    """Two prompts; reference mode asks at every step."""
    world = drafting(toy_trace([0, 9000], [8, 8], [40, 20]), scheduler=f"{HERE}:Asked")
    fast, plain = compared(world)
    asked, always = (cluster.replicas[0].core.scheduler.steps for cluster in (fast, plain))  # type: ignore[attr-defined]
    assert len(asked) < 8
    assert len(always) > 20


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", ["Newest", "Committing"])
def test_an_order_of_its_own_is_kept(name: str, depth: int) -> None:
    """Few blocks, so that the order in which they are taken is seen."""
    trace = toy_trace([0, 500, 900, 20_000], [8, 9, 30, 5], [30, 12, 25, 20])
    compared(drafting(trace, scheduler=f"{HERE}:{name}", depth=depth, asynchronous=depth > 1))


@pytest.mark.parametrize("depth", [1, 2])
def test_one_whose_draft_gets_no_memory_gives_way_as_the_scheduler_says(depth: int) -> None:
    trace = toy_trace([0, 0, 0], [14, 15, 16], [60, 60, 60])
    fast, _ = compared(drafting(trace, num_blocks=12, depth=depth, asynchronous=depth > 1))
    assert fast.recorder.requests.column("num_preemptions").any()


def test_of_two_that_end_the_one_whose_last_token_is_in_flight_is_passed_over() -> None:
    """All drafts are wrong: one ends at its cap, which is known a step before, the other by a stop token, which is
    not."""
    trace = toy_trace([0, 0, 0], [8, 8, 8], [10, 12, 30], caps=[10, 100, 30])
    compared(drafting(trace, acceptance="independent:alpha=0"))


def test_a_prompt_that_is_computed_in_chunks_is_planned_by_the_scheduler() -> None:
    trace = toy_trace([0, 2000], [8, 64], [40, 10])
    compared(drafting(trace, max_num_batched_tokens=24))


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("budget", [5, 7])
def test_a_request_for_whose_drafts_no_tokens_are_left_gets_memory_for_those_that_are_verified(
    budget: int, block_size: int
) -> None:
    """Each verifies one token and three drafts, and the second has one or three tokens left."""
    trace = toy_trace([0, 0], [3, 3], [30, 30])
    compared(
        World(trace, block_size=block_size, num_blocks=1000, speculation="eagle:k=3", max_num_batched_tokens=budget)
    )
