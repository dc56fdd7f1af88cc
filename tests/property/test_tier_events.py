"""What memory beyond the GPU tells routers is what can be read there, in both modes, and crashes do not change that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, key_of
from servesim.contracts.router import ReplicaView, Router, routers
from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Failing, Failures
from servesim.features.offload.params import HiCacheParams, LMCacheParams, VllmOffloadParams
from servesim.features.offload.part import Offloading
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.examples import examples
from tests.support.offloaded import memories, setup_of
from tests.support.strategies import worlds
from tests.support.worlds import World

FACTOR = 2
Told = tuple[int, int, KVEvent]


class Hearing(Router):
    """Takes replicas in turn, and keeps what it is told."""

    tiers = True
    name = "hearing"

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.told: list[Told] = []
        self.below: dict[tuple[int, str], Counter[Hashable]] = {}  # copies: host blocks may share their first GPU block
        self._turn = 0

    def route(self, request: Any, views: Sequence[ReplicaView]) -> int:
        self._turn += 1
        ready = [view.index for view in views if view.state == "ready"]
        return ready[self._turn % len(ready)]

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        for each in events:
            self.told.append(
                (self.clock(), replica, each._replace(content=None) if isinstance(each, BlockStored) else each)
            )
            if isinstance(each, AllBlocksCleared) or each.medium == "gpu":
                continue
            held = self.below.setdefault((replica, each.medium), Counter())
            if isinstance(each, BlockStored):
                held.update(each.keys)
            else:
                assert isinstance(each, BlockRemoved)
                assert all(held[key] for key in each.keys), "removed but not stored"
                held.subtract(each.keys)

    def on_replica(self, replica: int, state: str) -> None:
        if state in ("gone", "failed"):
            for (index, _), held in self.below.items():
                if index == replica:
                    held.clear()


@pytest.fixture(autouse=True, scope="module")
def hearing() -> Iterator[None]:
    """Let routers know this one, for the tests here alone."""
    routers._classes["hearing"] = Hearing
    yield
    del routers._classes["hearing"]


@st.composite
def told_worlds(draw: st.DrawFn) -> tuple[World, Any, Failures]:
    scheduler, kv = draw(st.sampled_from([("vllm", "prefix-hash"), ("sglang", "prefix-radix")]))
    world = draw(worlds(scheduler, kv, alike=True))
    size = str(FACTOR * draw(st.sampled_from([2, 5, 40])))
    own: list[Any] = [
        VllmOffloadParams(cpu=size, block_size_factor=FACTOR, eviction_policy=draw(st.sampled_from(["lru", "arc"]))),
        LMCacheParams(cpu=size, chunk_size=FACTOR * world.block_size, disk="60", disk_gb_s=1.0),
    ]
    params = HiCacheParams(cpu=size) if scheduler == "sglang" else draw(st.sampled_from(own))
    crashes = draw(st.lists(st.builds(Crash, st.integers(0, 1), st.integers(0, 20_000), st.just(3_000)), max_size=2))
    world = replace(world, replicas=2, router="hearing", speculation="").roomy()
    return world, params, Failures(tuple(crashes), reroutes=100, backoff_ns=100)


def run(given_world: tuple[World, Any, Failures], mode: str) -> Cluster:
    world, params, failures = given_world
    cluster = world.cluster(mode, check=True)
    size = world.block_size
    memory = setup_of(params, size, 20, world.num_blocks)
    cluster.add(Failing(failures), Offloading([(pool, memory) for pool in cluster.fleet.pools]))
    cluster.run()
    return cluster


@examples(40)
@given(told_worlds())
def test_both_modes_tell_the_same_and_in_the_end_what_was_told_is_what_is_there(
    world: tuple[World, Any, Failures],
) -> None:
    fast, plain = run(world, "fast"), run(world, "reference")
    assert by_row(fast.recorder) == by_row(plain.recorder)
    assert_steps_agree(fast.recorder, plain.recorder)
    assert isinstance(fast.router, Hearing)
    assert isinstance(plain.router, Hearing)
    assert fast.router.told == plain.router.told
    size, now = world[0].block_size, plain.now_ns
    for replica, connector in zip(plain.replicas, memories(plain), strict=True):
        for tier in connector.tiers:
            there: set[Hashable] = set()
            for request in connector.keys.requests():
                if request.content is None:
                    continue
                for number, key in enumerate(connector.keys.of(request, 0)):
                    block = tier.memory.get(key)
                    if block is not None and block.ready_ns <= now:
                        tokens = connector.block_tokens
                        first = number * tokens // size * size  # the GPU block that contains its first token
                        ends = range(first + size, (number + 1) * tokens + 1, size)
                        there.update(key_of(request.content.prefix_key(end), request.salt) for end in ends)
            held = plain.router.below.get((replica.index, {"cpu": "cpu", "disk": "storage"}[tier.name]), Counter())
            told = {key for key, copies in held.items() if copies}
            assert there <= told, "there, but not told"
            most = len(tier.memory) * connector.block_tokens // replica.core.kv.block_size
            assert len(told) <= most, "told, but not there"
            event(f"{tier.name}: {len(told) > 0}")


@examples(20)
@given(told_worlds())
def test_a_router_that_does_not_ask_for_tiers_hears_of_the_gpu_alone(world: tuple[World, Any, Failures]) -> None:
    Hearing.tiers = False
    try:
        cluster = run(world, "fast")
    finally:
        Hearing.tiers = True
    assert isinstance(cluster.router, Hearing)
    assert not cluster.router.below
    assert {each.medium for _, _, each in cluster.router.told if not isinstance(each, AllBlocksCleared)} <= {"gpu"}
