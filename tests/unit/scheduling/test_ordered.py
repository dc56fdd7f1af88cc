"""`Ordered`, the base of schedulers that differ in who is served first: one method, in both modes the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.checking.check import check
from servesim.checking.subject import Subject
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.agreement import Outcome, difference
from tests.property.test_fast_equals_reference import compared
from tests.support import based_policies
from tests.support.examples import examples
from tests.support.strategies import social_worlds, worlds
from tests.support.worlds import ToyCost, WatchedFast, World, toy_trace

FILE = based_policies.__file__


def scheduled(world: World) -> list[int]:
    """Rows in the order in which they were first scheduled."""
    rows = world.run(check=True).recorder.requests.array().tolist()
    row, first = REQUEST_COLUMNS.index("row"), REQUEST_COLUMNS.index("scheduled_ns")
    return [each[row] for each in sorted(rows, key=lambda r: (r[first], r[row]))]


def one_at_a_time(scheduler: str) -> World:
    """A long prompt that comes second, and short ones after it; one slot."""
    trace = toy_trace([0, 1, 1000, 1001, 1002], [64, 400, 32, 32, 32], [40, 4, 40, 40, 40])
    return World(trace, "paged", 200, scheduler=scheduler, max_num_seqs=1)


def test_the_least_rank_is_served_first_and_of_equal_ones_the_first_to_arrive() -> None:
    assert scheduled(one_at_a_time(f"{FILE}:ShortestPrompt")) == [0, 2, 3, 4, 1]


def test_a_dynamic_rank_is_asked_again_while_a_request_waits() -> None:
    """The long prompt came a microsecond earlier, which is worth a thousand tokens or next to nothing."""
    assert scheduled(one_at_a_time(f"{FILE}:AgingPrompt:tokens_per_s=1")) == [0, 2, 3, 4, 1]
    assert scheduled(one_at_a_time(f"{FILE}:AgingPrompt:tokens_per_s=1e9")) == [0, 1, 2, 3, 4]


def test_a_preemptive_order_displaces_running_requests_of_higher_rank_and_another_does_not() -> None:
    def preempted(name: str) -> list[int]:
        rows = one_at_a_time(f"{FILE}:{name}").run(check=True).recorder.requests.array().tolist()
        row, times = REQUEST_COLUMNS.index("row"), REQUEST_COLUMNS.index("num_preemptions")
        return [each[row] for each in rows if each[times]]

    assert preempted("Displacing") == [0]
    assert preempted("AgingPrompt") == []


def test_a_rank_that_ignores_the_time_lets_known_plans_be_skipped() -> None:
    def plans(scheduler: str) -> tuple[int, int]:
        cluster = one_at_a_time(scheduler).cluster("fast")
        core, made = cluster.replicas[0].core, list[int]()
        assert isinstance(core, WatchedFast)
        core.on_planned = made.append
        cluster.run()
        return len(made), core.next_step_id

    static, steps = plans(f"{FILE}:ShortestPrompt")
    assert static == plans("vllm")[0] < steps / 3
    dynamic, steps = plans(f"{FILE}:AgingPrompt")
    assert dynamic > steps / 2


def test_a_static_rank_is_told_when_the_request_arrived() -> None:
    assert scheduled(one_at_a_time(f"{FILE}:Arrival")) == [0, 1, 2, 3, 4]


def test_without_a_rank_a_run_ends_with_one_line_that_says_so() -> None:
    failures = check(Subject.of(f"{FILE}:RanklessOrder"), range(1)).failures
    assert len(failures) == 1
    assert "RanklessOrder has no method rank" in failures[0]


@pytest.mark.medium
@pytest.mark.parametrize("name", ["ShortestPrompt", "Aging", "AgingPrompt", "Displacing:tokens_per_s=1e6"])
def test_a_scheduler_on_it_passes_the_check_of_policies(name: str) -> None:
    assert check(Subject.of(f"{FILE}:{name}"), range(20)).failures == []


NAMED = st.sampled_from([f"{FILE}:{name}" for name in ("ShortestPrompt", "Displacing:tokens_per_s=1e6", "Displacing")])


@examples(60)
@given(NAMED.flatmap(lambda name: st.one_of(worlds(name), social_worlds(name))))
def test_fast_equals_plain_stepping(world: World) -> None:
    fast, plain = world.run("fast", check=True), world.run("reference", check=True)
    assert difference(Outcome.of(fast), Outcome.of(plain)) == ""


def test_a_displaced_request_whose_tokens_come_late_does_not_trade_places_without_end() -> None:
    """Request 1 gives way with two of its five tokens in flight: it is queued as one with five left, behind request 4
    with four, although three are left when those have come. Whoever is first in the queue is served."""
    world = World(
        toy_trace([2174, 17628, 18494, 34243, 44573], [55, 51, 15, 7, 73], [38, 6, 5, 3, 4], caps=[39, 6, 5, 4, 4]),
        scheduler="srpt",
        max_num_seqs=1,
        max_num_batched_tokens=64,
        max_model_len=120,
        depth=3,
        asynchronous=True,
        cost=ToyCost(1, 0, 13),
    )
    preemptions = world.run("reference").recorder.requests.column("num_preemptions")
    assert int(preemptions.sum()) == 2
    compared(world)
