"""A store that replicas share, in random worlds: it never holds more than fits, nothing is found before all of it is
written, and fast mode leaves what plain stepping leaves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts.connector import DEFER
from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Failing, Failures
from servesim.features.offload.params import LMCacheParams, StoreParams
from servesim.features.offload.part import Offloading
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.examples import examples
from tests.support.offloaded import memories, setup_of
from tests.support.strategies import social_worlds, worlds
from tests.support.worlds import World


@st.composite
def stores(draw: st.DrawFn) -> World:
    """Replicas that share a store, or a node's host memory and a store, with room for all requests on each."""
    world = draw(st.one_of(worlds(kv="prefix-hash", samples=True), social_worlds()))
    size, server = str(draw(st.sampled_from([1, 3, 8, 40]))), draw(st.sampled_from([None, 0.1, 0.001]))
    rate = draw(st.sampled_from([1.0, 0.01, 0.0005]))
    node, disk = draw(st.sampled_from([0, 1, 2])), draw(st.sampled_from([{}, {"disk": "9", "disk_gb_s": 0.01}]))
    remote = {"remote": size, "remote_gb_s": rate, "remote_server_gb_s": server}
    params: Any = draw(
        st.sampled_from(
            [
                StoreParams(size, rate, server_gb_s=server),
                LMCacheParams(cpu="8", chunk_size=world.block_size, replicas_per_node=node, **disk, **remote),
            ]
        )
    )
    crashes = st.builds(Crash, st.integers(0, 1), st.sampled_from([900, 5_000, 40_000]), st.sampled_from([0, 7_000]))
    failures = Failures(tuple(draw(st.lists(crashes, max_size=2))), backoff_ns=500, jitter=0.0)
    memory = setup_of(params, world.block_size, 300, 4_000)
    return replace(
        world,
        kv="prefix-hash",
        replicas=draw(st.sampled_from([2, 3])),
        num_blocks=4_000,
        features=(
            lambda world, pools: Failing(failures),
            lambda world, pools: Offloading([(pool, memory) for pool in pools]),
        ),
    )


@examples(50)
@given(stores())
def test_fast_mode_equals_plain_stepping(world: World) -> None:
    fast, plain = world.run("fast"), world.run("reference", check=True)
    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert [each.counts for each in memories(fast)] == [each.counts for each in memories(plain)]
    assert_steps_agree(fast.recorder, plain.recorder)
    event(f"loaded: {any(each.counts.loaded_tokens for each in memories(plain))}")


@examples(50)
@given(stores())
def test_it_never_holds_more_than_fits_and_nothing_is_found_before_it_was_written(world: World) -> None:
    cluster = world.cluster("reference", check=True)
    written: dict[tuple[int, Hashable], int] = {}
    seen: set[int] = set()
    cluster.start()
    while True:
        for connector in memories(cluster):
            if id(connector) not in seen:
                seen.add(id(connector))
                watch(connector, written, cluster)
            for tier in connector.tiers:
                assert len(tier.memory) <= tier.memory.num_blocks
        if not cluster.step():
            break
    for connector in memories(cluster):
        connector.check_integrity()


def watch(connector: Any, written: dict[tuple[int, Hashable], int], cluster: Cluster) -> None:
    """Note when what enters each memory is complete, and check each answer of the connector against that."""
    for tier in connector.tiers:
        tier.enter = entering(tier, written)
    available = connector.available

    def asked(request: Any, num_tokens: int) -> int:
        found: int = available(request, num_tokens)
        size = connector.block_tokens
        for key in connector.keys.of(request, 0)[num_tokens // size : (num_tokens + max(found, 0)) // size]:
            ends = [written.get((id(tier.memory), key), 1 << 62) for tier in connector.tiers]
            assert min(ends) <= cluster.now_ns, "found before it was written"
        event(f"found: {found > 0}, deferred: {found == DEFER}")
        return found

    connector.available = asked


def entering(tier: Any, written: dict[tuple[int, Hashable], int]) -> Any:
    enter = tier.enter

    def entered(room: Any, ready_ns: int, now: int) -> None:
        written.update(((id(tier.memory), key), ready_ns) for key in room.keys)
        enter(room, ready_ns, now)

    return entered
