"""What routers hear and see is the same in both modes, and no request is lost between router and replicas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.engine.telling import LOST
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, OnNode, Slowdown
from servesim.features.failures.upgrade import Upgrade
from servesim.records.columns import REQUEST_COLUMNS
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.examples import examples
from tests.support.strategies import social_worlds, worlds
from tests.support.worlds import World

LIVELY = Path(__file__).parents[1] / "support" / "lively.py"
AGES = st.sampled_from([(0, 0), (700, 0), (700, 250), (40_000, 0), (40_000, 90_000)])


def heard(world: World, mode: str) -> tuple[Cluster, list[tuple[Any, ...]]]:
    """What the router of a world hears, once it has run event by event with its books checked after each."""
    cluster = world.cluster(mode)
    router: Any = cluster.router
    cluster.start()
    while cluster.step():
        forked = sum(replica.core.num_forked for replica in cluster.replicas)
        in_flight = sum(replica.core.num_unfinished for replica in cluster.replicas)
        assert cluster.num_arrived + forked == cluster.num_left + cluster.num_waiting + in_flight
    left = [replica for replica in cluster.replicas if replica.state != "gone"]
    served = {name for replica in left for name in ("", replica.model)}
    assert cluster.waiting.num_for(served.__contains__) == 0, "only requests for a model without replicas wait on"
    assert sum(replica.core.num_unfinished for replica in cluster.replicas) == 0
    return cluster, router.heard


def assert_hears_the_same(world: World, router: str, ages: tuple[int, int]) -> None:
    world.replicas, world.router = max(world.replicas, 2), f"{LIVELY}:{router}"
    world.report_every, world.report_lag = ages
    fast, told = heard(world, "fast")
    plain, plainly_told = heard(world, "reference")
    assert told == plainly_told
    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert_steps_agree(fast.recorder, plain.recorder)
    kinds = Counter(kind for _, kind, *_ in told)
    rows = fast.recorder.requests.array()
    refused = rows[:, REQUEST_COLUMNS.index("replica")] < 0
    assert kinds["finish"] == kinds["sent"]
    rejected = [reason for reason in fast.recorder.reasons.values() if "refused by the router (429)" in reason]
    states = rows[refused, REQUEST_COLUMNS.index("state")]
    assert len(rejected) == int((states == State.REJECTED).sum())
    sent = Counter(row for _, kind, row, *_ in told if kind == "sent")
    assert world.failures is not None or set(sent.values()) <= {1}
    event(f"routed again: {set(sent.values()) > {1}}")
    event(f"lost: {LOST in fast.recorder.reasons.values()}")
    first = [row for _, kind, row, *_ in told if kind == "first"]
    assert len(first) == len(set(first))
    event(f"leapt: {bool((fast.recorder.steps.column('k') > 1).any())}")
    event(f"waited: {kinds['route'] > len(rows)}")
    event(f"refused: {bool(rejected)}")
    event(f"blocks: {kinds['block'] > 0}, cached: {kinds['kv'] > 0}")


@examples(40)
@given(worlds(), AGES)
def test_a_router_hears_and_sees_the_same_in_both_modes_whatever_the_age_of_its_views(
    world: World, ages: tuple[int, int]
) -> None:
    assert_hears_the_same(world, "Lively", ages)


@pytest.mark.parametrize("kv", ["prefix-hash", "prefix-radix:page_size=4"])
def test_the_same_where_it_hears_of_each_block(kv: str) -> None:
    @examples(20)
    @given(worlds(kv=kv), AGES)
    def holds(world: World, ages: tuple[int, int]) -> None:
        assert_hears_the_same(world, "Livelier", ages)

    holds()


@examples(30)
@given(social_worlds(), AGES)
def test_the_same_where_clients_give_up_and_try_again(world: World, ages: tuple[int, int]) -> None:
    assert_hears_the_same(world, "Lively", ages)


@st.composite
def breakages(draw: st.DrawFn) -> Failures:
    times = st.integers(0, 200_000)
    crash = st.builds(Crash, st.sampled_from([0, 1]), times, st.sampled_from([0, 5_000, 90_000]))
    slow = st.builds(lambda i, at, ns, x: Slowdown(i, at, at + ns, x), st.just(0), times, st.just(50_000), st.just(2.5))
    of_node = st.builds(Crash, st.just(-1), times, st.sampled_from([0, 5_000, 90_000])) | slow
    nodes = st.lists(st.builds(OnNode, st.just(0), of_node), max_size=1)
    return Failures(
        tuple(draw(st.lists(crash, min_size=1, max_size=3))),
        tuple(draw(st.lists(slow, max_size=2))),
        tuple(draw(st.lists(st.builds(Drain, st.sampled_from([0, 1]), times), max_size=1))),
        tuple(draw(st.lists(st.builds(Add, times, st.sampled_from([0, 900, 30_000]), st.just(0)), max_size=2))),
        detect_ns=draw(st.sampled_from([0, 3_000])),
        reroutes=draw(st.sampled_from([1, 5])),
        backoff_ns=draw(st.sampled_from([0, 2_000])),
        nodes=tuple(draw(nodes)),
        upgrades=tuple(draw(st.lists(upgrades(times), max_size=2))),
    )


def upgrades(times: st.SearchStrategy[int], pool: int = 0) -> st.SearchStrategy[Upgrade]:
    """Upgrades of a pool."""
    starts, graces = st.sampled_from([0, 900, 30_000]), st.sampled_from([0, 4_000, 10**9])
    return st.builds(Upgrade, times, starts, st.just(pool), st.just(pool), st.integers(1, 3), st.booleans(), graces)


@examples(40)
@given(st.one_of(worlds(), social_worlds()), AGES, breakages())
def test_the_same_where_replicas_crash_and_are_slow_and_no_request_is_lost_or_served_twice(
    world: World, ages: tuple[int, int], failures: Failures
) -> None:
    world.failures = failures
    assert_hears_the_same(world, "Lively", ages)
