"""Data-parallel ranks: one barrier a step, dummy steps, and what a group of one rank must be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from servesim.contracts.connector import LATER, Connector
from servesim.contracts.cost import NO_HOST, Batch, Price
from servesim.contracts.part import Part
from servesim.contracts.place import Place
from servesim.contracts.request import Request, State
from servesim.errors import PolicyError
from servesim.features.data_parallel.part import DataParallel, Ranks
from servesim.features.failures.part import Add, Crash, Drain, Failures, Slowdown
from servesim.features.scaling.part import Scaled, Scaling
from servesim.records.columns import REQUEST_COLUMNS, STEP_COLUMNS
from tests.support.scaled import Told
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


# What befalls a group: it starts, drains and fails as a whole.

CRASHES = Failures((Crash(0, 150, 1_000),), reroutes=0)
FOUR = toy_trace([0] * 4, [10] * 4, [3] * 4)  # one request a rank: steps end at 111, 213, 315


@MODES
def test_the_crash_of_one_rank_loses_the_requests_of_its_group_and_no_other(mode: str) -> None:
    world = World(FOUR, replicas=4, cost=COST, data_parallel=DataParallel(2), failures=CRASHES)
    cluster = world.run(mode, check=True)
    found = [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(cluster.recorder.requests.array().tolist())]
    assert [(r["replica"], r["state"], r["finished_ns"]) for r in found] == [
        (0, State.ABORTED, 150),
        (1, State.ABORTED, 150),
        (2, State.FINISHED, 315),
        (3, State.FINISHED, 315),
    ]
    states: dict[int, list[tuple[int, str]]] = {}
    for ns, index, state in cluster.fleet.history:
        states.setdefault(index, []).append((ns, state))
    both = [(150, "crashed"), (150, "failed"), (1_150, "starting"), (1_150, "ready")]
    assert states == {0: both, 1: both}


@MODES
def test_a_group_that_is_back_steps_together_from_then_on(mode: str) -> None:
    trace = toy_trace([0, 0, 2_000, 2_005], [10, 10, 200, 10], [3, 3, 1, 1])
    failures = CRASHES._replace(crashes=(Crash(1, 150, 1_000),))
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2), failures=failures)
    found = rows(world, mode)
    assert [row["state"] for row in found] == [State.ABORTED] * 2 + [State.FINISHED] * 2
    assert [row["first_token_ns"] for row in found[2:]] == [2_301, 2_412]


@MODES
def test_requests_lost_before_the_first_token_go_to_the_other_group(mode: str) -> None:
    failures = Failures((Crash(1, 50, -1),), backoff_ns=0)
    world = World(FOUR, replicas=4, cost=COST, data_parallel=DataParallel(2), failures=failures)
    found = rows(world, mode)
    assert sorted(row["replica"] for row in found) == [2, 2, 3, 3]
    assert all(row["state"] == State.FINISHED for row in found)


@MODES
def test_one_slow_rank_slows_down_its_group(mode: str) -> None:
    failures = Failures(slowdowns=(Slowdown(1, 0, 1_000, 2.0),))
    world = World(FOUR, replicas=4, cost=COST, data_parallel=DataParallel(2), failures=failures)
    assert [row["finished_ns"] for row in rows(world, mode)] == [2 * 315] * 2 + [315] * 2


@MODES
def test_a_group_drains_and_is_gone_when_its_last_rank_is_empty(mode: str) -> None:
    trace = toy_trace([0, 0, 50, 50], [10, 10, 10, 10], [1, 3, 1, 1])
    failures = Failures(drains=(Drain(0, 20),), adds=(Add(30, 10),))
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2), failures=failures)
    cluster = world.run(mode, check=True)
    found = [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(cluster.recorder.requests.array().tolist())]
    assert [row["replica"] for row in found] == [0, 1, 2, 3]
    assert [row["finished_ns"] for row in found] == [111, 315, 161, 161]
    assert cluster.fleet.spans == [(0, 315), (0, 315), (30, None), (30, None)]


@MODES
def test_a_group_that_is_gone_makes_no_dummy_steps(mode: str) -> None:
    failures = Failures(drains=(Drain(0, 20),))
    trace = toy_trace([0, 0], [10, 10], [1, 3])
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2, 32), failures=failures)
    ranks = world.run(mode, check=True).part(Ranks)
    assert ranks is not None
    assert [(group.steps, group.dummies) for group in ranks.groups] == [(3, 2)]


@MODES
def test_an_autoscaler_counts_groups_and_hears_sums_of_their_ranks(mode: str) -> None:
    scaler = Told([2, 1])

    @dataclass
    class Grows(World):
        def parts(self, pools: Any) -> list[Part]:
            return [*super().parts(pools), Scaling([Scaled(pools[0], scaler, 500, 1, 3)])]

    trace = toy_trace([0, 0, 0], [100] * 3, [400] * 3)
    cluster = Grows(trace, replicas=2, cost=COST, data_parallel=DataParallel(2)).run(mode, check=True)
    first, second = scaler.saw[:2]
    assert [(*first.ready,), first.ready[0].num_running] == [(0,), 3]
    assert [(*second.ready,), second.ready[0].num_running, second.ready[2].num_running] == [(0, 2), 3, 0]
    assert [until for _, until in cluster.fleet.spans] == [None, None, 14_000, 14_000]


# What moves KV: the group waits for it.


class Slow(Connector):
    """Stores for 50 ns after each step."""

    def available(self, request: Request, num_tokens: int) -> int:
        return 0

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        raise AssertionError

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        return end_ns + 50


class Far(Slow):
    """Has the first 16 tokens of every prompt 1,000 ns away."""

    def available(self, request: Request, num_tokens: int) -> int:
        return 16 - num_tokens if num_tokens < 16 else 0

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        return now + 1_000

    def ran(self, requests: Iterable[Request], begin_ns: int, end_ns: int) -> int:
        return end_ns


@dataclass
class Connected(World):
    """A world whose first rank has a connector."""

    connector: type[Connector] = Slow

    def cluster(self, mode: str = "fast", check: bool = False) -> Any:
        cluster = super().cluster(mode, check)
        cluster.replicas[0].connect(self.connector(None, Place(16, 1, 1, 1, 16, 1, 1.0)))
        cluster.replicas[0].core.step_plainly()
        return cluster


@MODES
def test_a_rank_that_stores_its_kv_within_the_step_delays_all(mode: str) -> None:
    world = Connected(FOUR, replicas=4, cost=COST, data_parallel=DataParallel(2))
    cluster = world.run(mode, check=True)
    requests = cluster.recorder.requests
    finished = dict(zip(requests.column("row").tolist(), requests.column("finished_ns").tolist(), strict=True))
    assert finished == {0: 315 + 150, 1: 315 + 150, 2: 315, 3: 315}
    assert [replica.core.stalled_ns for replica in cluster.replicas] == [150, 0, 0, 0]


@MODES
@pytest.mark.parametrize(("waits", "dummies"), [(False, 1), (True, 1 + 2 * 10)])
def test_vllms_ranks_make_dummy_steps_while_kv_is_on_its_way(mode: str, waits: bool, dummies: int) -> None:
    cost = WithDummies(fixed=100, token=1, context=0)
    terms = DataParallel(2, 1, while_loading=waits)
    world = Connected(toy_trace([0], [20], [1]), replicas=2, cost=cost, data_parallel=terms, connector=Far)
    cluster = world.run(mode, check=True)
    ranks = cluster.part(Ranks)
    assert ranks is not None
    assert (ranks.groups[0].steps, ranks.groups[0].dummies) == (1 + dummies // 2, dummies)
    assert cluster.recorder.requests.column("finished_ns").tolist() == [1_000 + 105]
    assert cluster.clock.background == 0


class Never(Far):
    """Has the first 16 tokens of every prompt, which never come."""

    def load(self, request: Request, start: int, stop: int, now: int) -> int:
        return LATER


@MODES
def test_ranks_that_wait_for_kv_forever_end_the_run_with_an_error(mode: str) -> None:
    terms = DataParallel(2, 1, while_loading=True)
    world = Connected(toy_trace([0], [20], [1]), replicas=2, cost=COST, data_parallel=terms, connector=Never)
    with pytest.raises(PolicyError, match="plans nothing although 1 requests wait"):
        world.run(mode)


@MODES
def test_ranks_that_also_check_after_the_first_step_stop_after_it(mode: str) -> None:
    cost = WithDummies(fixed=100, token=1, context=0)
    for outputs, steps in ((1, 1), (2, 16), (17, 32)):  # vLLM 0.33: after the first step and every 16th
        terms = DataParallel(2, 16, after_first=True)
        world = World(toy_trace([0], [20], [outputs]), replicas=2, cost=cost, data_parallel=terms)
        ranks = world.run(mode).part(Ranks)
        assert ranks is not None
        assert ranks.groups[0].steps == steps


@dataclass
class Staged(ToyCost):
    """Two pipeline stages, each of which computes half."""

    num_stages = 2

    def stages(self, batch: Batch) -> tuple[int, ...]:
        ns = int(self.gpu_run(batch, 1)[0])
        return ns // 2, ns - ns // 2


@MODES
def test_ranks_wait_for_each_other_on_each_pipeline_stage(mode: str) -> None:
    """Steps of 100 tokens: 200 ns, and 201 with the one that samples; beside them 111 ns, and a dummy one of 102."""
    trace = toy_trace([0, 0], [200, 10], [1, 1])
    cost = Staged(fixed=100, token=1, context=0)
    world = World(trace, replicas=2, cost=cost, depth=2, max_num_batched_tokens=100, data_parallel=DataParallel(2))
    assert [row["first_token_ns"] for row in rows(world, mode)] == [100 + 100 + 101, 200]
    alone = replace(world, data_parallel=None)
    assert [row["first_token_ns"] for row in rows(alone, mode)] == [301, 111]


# Fast mode: runs of rounds.


def events(world: World, mode: str) -> tuple[int, tuple[int, int]]:
    """The events of a run, and the rounds and dummy steps of its one group."""
    cluster = world.cluster(mode, check=True)
    cluster.start()
    count = 0
    while cluster.step():
        count += 1
    ranks = cluster.part(Ranks)
    assert ranks is not None
    (group,) = ranks.groups
    return count, (group.steps, group.dummies)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_run_of_rounds_of_all_ranks_is_one_event(depth: int) -> None:
    world = World(
        toy_trace([0, 0], [10, 10], [60, 100]),
        replicas=2,
        cost=COST,
        data_parallel=DataParallel(2),
        depth=depth,
        asynchronous=depth == 2,
    )
    fast, found = events(world, "fast")
    plain, expected = events(world, "reference")
    assert found == expected == (100, 40), "the short one's rank makes dummy steps"
    assert plain >= 100 > 10 >= fast


@MODES
def test_a_request_that_comes_to_one_rank_ends_the_run_of_all(mode: str) -> None:
    trace = toy_trace([0, 0, 1_000], [10, 10, 20], [60, 60, 3])
    world = World(trace, replicas=2, router="round-robin", cost=COST, data_parallel=DataParallel(2))
    one, other, late = rows(world, mode)
    # prompts to 111, 9 rounds of 102 until the next plan, at 1,029; 21 tokens of which 2 are sampled; 2 rounds of two
    assert [late["replica"], late["first_token_ns"]] == [0, 1_029 + 123]
    assert late["finished_ns"] == 1_152 + 2 * 104
    assert one["finished_ns"] == other["finished_ns"] == 1_360 + 47 * 102


@MODES
def test_a_rank_that_slows_down_in_a_run_of_rounds_slows_down_all_from_the_next_one_on(mode: str) -> None:
    failures = Failures((), slowdowns=(Slowdown(1, 1_000, 1_100, 2.0),))
    trace = toy_trace([0, 0], [10, 10], [60, 60])
    world = World(trace, replicas=2, cost=COST, data_parallel=DataParallel(2), failures=failures)
    # the round that begins at 1,029 takes 204; the others 102
    assert [row["finished_ns"] for row in rows(world, mode)] == [111 + 59 * 102 + 102] * 2
