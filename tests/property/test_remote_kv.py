"""Requests that wait for KV computed elsewhere: fast mode leaves what plain stepping leaves."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.elsewhere import Elsewhere, connected
from tests.support.examples import examples
from tests.support.strategies import drafting_worlds, lockstep_worlds, social_worlds, worlds
from tests.support.worlds import World, watch

LOADS = st.tuples(
    st.sampled_from([1, 2, 3]), st.sampled_from([5, 16, 48, 200]), st.sampled_from([0, 700, 5_000, 90_000])
)


def run_connected(
    world: World, mode: str, load: tuple[int, int, int], check: bool = True
) -> tuple[Cluster, dict[Any, Any]] | str:
    """A run to its end and what was seen in it, or why it has no end: with too little memory requests may hold it and
    wait for each other."""
    cluster = connected(world, mode, *load, check=check)
    seen = watch(cluster) if check else {}
    try:
        cluster.run()
    except (PolicyError, UserError) as error:
        return str(error)
    return cluster, seen


def transfers(cluster: Cluster) -> list[list[tuple[int, int, int, int]]]:
    connectors = [replica.core.connector for replica in cluster.replicas]
    return [connector.loads for connector in connectors if isinstance(connector, Elsewhere)]


def agree(world: World, load: tuple[int, int, int]) -> None:
    one, other = run_connected(world, "fast", load), run_connected(world, "reference", load)
    if isinstance(one, str) or isinstance(other, str):
        event("stuck")
        assert one == other
        return
    (fast, snapshots), (plain, expected) = one, other
    unwatched, _ = run_connected(world, "fast", load, check=False)
    assert isinstance(unwatched, Cluster)
    assert by_row(fast.recorder) == by_row(plain.recorder) == by_row(unwatched.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert transfers(fast) == transfers(plain) == transfers(unwatched)
    for a, b in zip(fast.recorder.itl(), plain.recorder.itl(), strict=True):
        assert a.tolist() == b.tolist()
    assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
    for run in (fast, unwatched):
        assert_steps_agree(run.recorder, plain.recorder)
    for key, snapshot in snapshots.items():
        assert snapshot == expected[key], f"replica, time, step {key}"
    event(f"loaded: {any(map(bool, transfers(fast)))}")
    event(f"leapt: {len(unwatched.recorder.steps.array()) < len(plain.recorder.steps.array())}")


@examples(200)
@given(worlds(samples=True), LOADS)
def test_fast_mode_equals_plain_stepping_where_kv_comes_from_elsewhere(
    world: World, load: tuple[int, int, int]
) -> None:
    agree(world, load)


@examples(150)
@given(lockstep_worlds(), LOADS)
def test_the_same_where_requests_that_decode_are_counted_together(world: World, load: tuple[int, int, int]) -> None:
    agree(world, load)


@examples(150)
@given(social_worlds(samples=True), LOADS)
def test_the_same_where_clients_give_up(world: World, load: tuple[int, int, int]) -> None:
    agree(world, load)


@examples(100)
@given(drafting_worlds(), LOADS)
def test_the_same_where_drafts_are_verified(world: World, load: tuple[int, int, int]) -> None:
    agree(world, load)
