"""KV in host memory, with times computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts.connector import DEFER
from servesim.engine.cluster import Cluster
from servesim.features.offload.tiers import Direction
from tests.support.offloaded import Host, memories, offloaded
from tests.support.worlds import ToyCost, World, toy_trace
from tests.unit.engine.test_remote_kv import rows

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples
MODES = ("reference", "fast")


def twice(second_ns: int, num_blocks: int = 5, **more: Any) -> World:
    """Two requests with the same 32 tokens in front, and one between whose 60 tokens take all memory."""
    runs = [[(1, 32), (10, 8)], [(2, 60)], [(1, 32), (11, 8)]]
    trace = toy_trace([0, 500, second_ns], [40, 60, 40], [1, 1, 1], runs=runs)
    return World(trace, cost=COST, kv="prefix-hash", num_blocks=num_blocks, **more)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_gpu_has_given_up_comes_back_from_host_memory(mode: str) -> None:
    """Row 0 runs until 141 ns, then its 2 full blocks are copied at 10 ns a block. Row 1 pushes them off the GPU. Row 2
    has them 20 ns after it asks, then computes its last 8 tokens (100 + 8 + 1 ns)."""
    cluster = offloaded(twice(5_000), mode, Host(blocks=100, ns_per_block=10))
    cluster.run()
    assert rows(cluster, "scheduled_ns", "first_token_ns", "hit_tokens")[2] == [5_020, 5_129, 0]
    counts = memories(cluster)[0].counts
    assert counts.first_tokens == {2: 32}
    assert counts.load_ns == [20]
    assert counts.stored_tokens == 32 + 48


@pytest.mark.parametrize("mode", MODES)
def test_without_room_the_end_of_the_older_prompt_goes_and_is_computed_again(mode: str) -> None:
    """Host memory for 4 blocks: the 3 of row 1 take the place of row 0's second. Row 2 has the first 10 ns after it
    asks, and computes 24 tokens (100 + 24 + 1 ns)."""
    cluster = offloaded(twice(5_000), mode, Host(blocks=4, ns_per_block=10))
    cluster.run()
    assert rows(cluster, "scheduled_ns", "first_token_ns")[2] == [5_010, 5_135]
    assert memories(cluster)[0].counts.dropped_blocks == 1 + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_has_ended_keeps_its_memory_until_it_is_copied(mode: str) -> None:
    """Row 0 ends at 141 ns; its copies take until 2,141 ns. Row 1 needs all 4 blocks and waits for them."""
    cluster = offloaded(twice(50_000), mode, Host(blocks=100, ns_per_block=1_000))
    cluster.run()
    assert rows(cluster, "finished_ns")[0] == [141]
    assert rows(cluster, "scheduled_ns")[1] == [2_141]


@pytest.mark.parametrize(("told_at_end", "loaded"), [(False, 32), (True, 0)])
def test_up_to_0_19_blocks_can_be_found_only_when_their_request_has_ended(told_at_end: bool, loaded: int) -> None:
    """Row 0 decodes for long; row 1 asks for its prompt, which was computed long before, on a replica without prefix
    caching of its own."""
    runs = [[(1, 32), (10, 8)], [(1, 32), (11, 8)]]
    world = World(toy_trace([0, 2_000], [40, 40], [60, 1], runs=runs), cost=COST, kv="paged", num_blocks=40)
    cluster = offloaded(world, "reference", Host(blocks=100, ns_per_block=10, told_at_end=told_at_end))
    cluster.run()
    assert sum(memories(cluster)[0].counts.first_tokens.values()) == loaded


@pytest.mark.parametrize("mode", MODES)
def test_one_whose_blocks_are_on_their_way_to_another_waits_and_those_behind_it_go_ahead(mode: str) -> None:
    """Rows 2 and 3 want the same blocks, which take 2,000 ns; row 4 something else. Row 3 finds them with row 2."""
    runs = [[(1, 32), (10, 8)], [(2, 140)], [(1, 32), (11, 8)], [(1, 32), (12, 8)], [(3, 40)]]
    trace = toy_trace([0, 5_000, 50_000, 50_000, 50_000], [40, 140, 40, 40, 40], [1] * 5, runs=runs)
    cluster = offloaded(
        World(trace, cost=COST, kv="prefix-hash", num_blocks=10), mode, Host(blocks=100, ns_per_block=1_000)
    )
    cluster.run()
    found = rows(cluster, "scheduled_ns", "hit_tokens")
    assert found[4] == [50_000, 0]
    assert found[2] == [52_000, 0]
    assert found[3] == [52_000, 32]
    assert memories(cluster)[0].counts.deferred > 0
    assert memories(cluster)[0].counts.first_tokens == {2: 32}


def test_a_step_waits_until_what_a_preemption_freed_is_copied() -> None:
    """Two requests outgrow 8 blocks, and copies are slow: the step that takes over the memory of the later one begins
    when its last copy is done."""
    trace = toy_trace([0, 0], [40, 40], [40, 40])
    cluster = offloaded(World(trace, cost=COST, num_blocks=8), "reference", Host(blocks=100, ns_per_block=50_000))
    cluster.run()
    core = cluster.replicas[0].core
    assert rows(cluster, "num_preemptions")[0] == [0]
    assert rows(cluster, "num_preemptions")[1] >= [1]
    starts = cluster.recorder.steps.column("start_ns").tolist()
    assert core.stalled_ns > 0
    assert core.not_before_ns in starts


def test_copies_of_one_direction_run_one_after_the_other() -> None:
    link = Direction(bytes_per_s=2_000_000_000, start_ns=5)
    assert link.copy(100, 1_000) == 1_000 + 5 + 50
    assert link.copy(100, 1_010) == 1_055 + 55
    assert link.copy(1, 9_000) == 9_000 + 5 + 1  # part of a ns is one
    assert link.busy_ns == 55 + 55 + 6


def test_blocks_of_several_gpu_blocks_come_and_go_whole() -> None:
    """A host block is 2 GPU blocks: of 40 tokens 32 are stored, as one, and loaded. Of the 60 tokens of
    row 1 as many are stored."""
    cluster = offloaded(twice(5_000), "reference", Host(blocks=100, factor=2, ns_per_block=10))
    cluster.run()
    counts = memories(cluster)[0].counts
    assert counts.first_tokens == {2: 32}
    assert len(memories(cluster)[0].memory) == 1 + 1


def test_a_request_asks_again_only_while_another_loads() -> None:
    cluster: Cluster = offloaded(twice(5_000), "reference", Host(blocks=100, ns_per_block=10))
    cluster.run()
    offload = memories(cluster)[0]
    request = next(each for each in offload.keys.requests() if each.row == 2)
    offload._loads.append((1 << 60, offload.keys.of(request, 1)[:1]))
    assert offload.available(request, 0) == DEFER
    offload._loads.clear()
    assert offload.available(request, 0) == 32
    assert offload.available(request, 16) == 16
    assert offload.available(request, 32) == 0
