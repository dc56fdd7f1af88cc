"""Data-parallel ranks: one barrier a step, dummy steps, and what a group of one rank must be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from servesim.contracts.cost import NO_HOST, Batch, Price
from servesim.features.data_parallel.part import DataParallel, Ranks
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS
from tests.support.worlds import ToyCost, World, toy_trace

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples
MODES = pytest.mark.parametrize("mode", ["fast", "reference"])


@dataclass
class WithDummies(ToyCost):
    """Ranks without work take part in 100 ns."""

    def prices(self, batches: list[Batch | None]) -> list[Price]:  # type: ignore[override]
        return [self.price(b) if b is not None else Price(100, 100, NO_HOST, (0, 0, 0, 100)) for b in batches]


def rows(world: World, mode: str) -> list[dict[str, int]]:
    found = world.run(mode, check=True).recorder.requests.array().tolist()
    return [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(found)]


@MODES
def test_the_slowest_rank_sets_the_step(mode: str) -> None:
    trace = toy_trace([0, 0], [10, 200], [2, 4])
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2))
    short, long = rows(world, mode)
    # as in test_barrier: steps end at 301 (200 tokens), 403 and 505 (two decodes, then one), 607
    assert [short["replica"], long["replica"]] == [0, 1]
    assert [short["first_token_ns"], short["finished_ns"]] == [301, 301 + 102]
    assert [long["first_token_ns"], long["finished_ns"]] == [301, 301 + 3 * 102]


@MODES
def test_ranks_apart_do_not_wait_for_each_other(mode: str) -> None:
    trace = toy_trace([0, 0], [10, 200], [2, 4])
    short, _ = rows(World(trace, replicas=2, cost=COST), mode)
    assert [short["first_token_ns"], short["finished_ns"]] == [111, 213]


@MODES
def test_a_request_that_comes_while_a_step_runs_waits_for_its_end(mode: str) -> None:
    trace = toy_trace([0, 5], [200, 10], [1, 1])
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2))
    _, late = rows(world, mode)
    assert late["first_token_ns"] == 301 + 111, "its rank is idle, and yet it joins the next step of all"


@MODES
def test_a_request_after_the_last_one_waits_for_a_dummy_step_until_all_know_that_all_have_ended(mode: str) -> None:
    cost = WithDummies(fixed=100, token=1, context=0)
    trace = toy_trace([0, 350], [200, 10], [1, 1])
    for sync, begins in ((1, 350), (32, 401)):  # the first step ends at 301, a dummy one at 401
        world = World(trace, replicas=2, cost=cost, data_parallel=DataParallel(2, sync))
        assert rows(world, mode)[1]["first_token_ns"] == begins + 111


@MODES
def test_dummy_steps_end_with_the_step_in_which_ranks_ask_each_other(mode: str) -> None:
    cost = WithDummies(fixed=100, token=1, context=0)
    world = World(toy_trace([0], [200], [1]), replicas=2, cost=cost, data_parallel=DataParallel(2, 32))
    cluster = world.run(mode)
    ranks = cluster.part(Ranks)
    assert ranks is not None
    (group,) = ranks.groups
    assert (group.steps, group.dummies) == (32, 31 * 2 + 1)
    assert cluster.now_ns == 301 + 31 * 100


@MODES
def test_two_replicas_of_two_ranks_are_two_barriers(mode: str) -> None:
    trace = toy_trace([0] * 4, [10, 10, 200, 10], [1] * 4)
    world = World(trace, replicas=4, cost=COST, data_parallel=DataParallel(2))
    assert [row["first_token_ns"] for row in rows(world, mode)] == [111, 111, 301, 301]


def test_every_step_of_a_group_begins_and_ends_on_all_ranks_together() -> None:
    trace = toy_trace([0, 40, 90, 700, 720], [30, 200, 10, 64, 5], [9, 3, 20, 4, 12])
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2), depth=2, asynchronous=True)
    steps = [
        dict(zip(STEP_COLUMNS, row, strict=True)) for row in world.run("reference").recorder.steps.array().tolist()
    ]
    ends = [{s["start_ns"]: s["end_ns"] for s in steps if s["replica"] == i} for i in (0, 1)]
    both = ends[0].keys() & ends[1].keys()
    assert len(both) > 5
    assert all(ends[0][start] == ends[1][start] for start in both)


def test_a_group_of_one_rank_is_the_plain_engine() -> None:
    trace = toy_trace([0, 40, 90, 700, 720], [30, 200, 10, 64, 5], [9, 3, 20, 4, 12])
    plain = World(trace, cost=COST, depth=2, asynchronous=True)
    assert rows(replace(plain, data_parallel=DataParallel(1)), "reference") == rows(plain, "reference")
