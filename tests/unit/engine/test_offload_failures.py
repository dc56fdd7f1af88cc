"""What a crash leaves of memory beyond the GPU, by hand: every step takes 1,000 ns, a block of 16 tokens is a byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import servesim
from servesim.contracts import State
from servesim.contracts.place import Counts
from servesim.contracts.request import Request
from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Failing, Failures
from servesim.features.offload.params import LMCacheParams, VllmOffloadParams
from servesim.features.offload.part import Offloading
from tests.support.offloaded import memories, setup_of
from tests.support.worlds import ToyCost, World, toy_trace

MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
STEPS = ToyCost(fixed=1000, token=0, context=0)
RUNS = [[(1, 64), (10, 8)], [(2, 75)], [(1, 64), (11, 8)]]


def crashing(params: Any, mode: str, at: int | None, link: int = 1_000_000_000, third: int = 60_000) -> Cluster:
    """Two requests with the same 64 tokens in front, and one between whose 75 tokens take all memory of the GPU. The
    only replica crashes and is back 1,000 ns later. `link`: bytes per s to host memory."""
    trace = toy_trace([0, 20_000, third], [72, 75, 72], [1, 1, 1], runs=RUNS)
    memory = setup_of(params, 16, 1_000_000_000 // link, 6)
    world = World(trace, cost=STEPS, kv="prefix-hash", num_blocks=6)
    crash = Failures((Crash(0, at, 1_000),) if at is not None else (), backoff_ns=500, jitter=0.0)
    world = replace(
        world,
        features=(
            lambda world, pools: Failing(crash),
            lambda world, pools: Offloading([(pool, memory) for pool in pools]),
        ),
    )
    return world.run(mode, check=True)


def found(cluster: Cluster) -> tuple[dict[str, int], int]:
    """Tokens that the present process of the replica has loaded, by tier, and the time of the third first token."""
    table = cluster.recorder.requests
    first = dict(zip(table.column("row").tolist(), table.column("first_token_ns").tolist(), strict=True))
    return memories(cluster)[0].counts.tier_tokens, first[2]


@MODES
def test_host_memory_ends_with_its_process(mode: str) -> None:
    # a step of LMCache lasts until its four chunks are stored
    for params, end in ((VllmOffloadParams(cpu="400"), 61_000), (LMCacheParams(cpu="400", chunk_size=16), 61_004)):
        assert found(crashing(params, mode, None))[0] == {"cpu": 64}
        assert found(crashing(params, mode, 50_000)) == ({}, end)


@MODES
def test_a_store_that_replicas_share_outlives_the_process_of_one_but_for_what_was_being_written(mode: str) -> None:
    # a chunk takes 1,000 ns to the store and back: the four of row 0 are there at 5,004, those of row 1 after 21,004
    params = LMCacheParams(cpu="400", remote="400", remote_gb_s=0.001, remote_start_us=0, chunk_size=16)
    assert found(crashing(params, mode, 50_000)) == ({"remote": 64}, 65_004)
    writing = crashing(params, mode, 5_003)
    assert found(writing) == ({}, 61_004)
    (store,) = {id(tier.memory): tier.memory for cache in memories(writing) for tier in cache.tiers[1:]}.values()
    assert len(store) == 4 + 4, "written later"


@MODES
def test_a_load_that_is_under_way_ends_with_the_process_and_its_request_is_served_by_the_next(mode: str) -> None:
    # a block takes 1,000 ns; the load of row 2 begins at 60,000 and would end at 64,000
    link = 1_000_000
    assert found(crashing(VllmOffloadParams(cpu="400"), mode, None, link)) == ({"cpu": 64}, 65_000)
    cluster = crashing(VllmOffloadParams(cpu="400"), mode, 62_000, link)
    assert found(cluster) == ({}, 64_000), "back at 63,000, with nothing"
    core = cluster.replicas[0].core
    assert (core.fetched, core.kv.usage().used) == ({}, 0)


@MODES
def test_a_copy_that_is_under_way_ends_with_the_process(mode: str) -> None:
    # row 0's four blocks are copied from 1,000 to 5,000, and it has ended at 1,000
    cluster = crashing(VllmOffloadParams(cpu="400"), mode, 3_000, 1_000_000)
    assert found(cluster)[0] == {}
    assert cluster.recorder.requests.column("state").tolist() == [State.FINISHED] * 3
    assert not cluster.replicas[0].core.keeping


def test_what_a_request_loads_once_more_after_a_crash_is_no_hit_of_its_first_admission() -> None:
    counts, request = Counts(), Request(0, "r", 100, 10, 0)
    counts.loaded(request, 64, "cpu")
    request.num_migrations = 1
    counts.loaded(request, 80, "cpu")
    counts.loaded(Request(0, "r", 110, 1, 0, owner=request), 96, "cpu")
    assert (counts.tier_tokens, counts.again_tokens) == ({"cpu": 64}, 80 + 96)


def test_figures_count_a_replica_once_however_often_it_has_crashed() -> None:
    settings = {
        "trace": "synth:rate=20,prompt=300,output=20", "requests": 40, "model": "llama-3.2-1b", "gpu": "h200",
        "offload": "vllm:cpu=1GiB", "replicas": 2, "router": "round-robin", "engine": {"num_gpu_blocks": 300},
    }  # fmt: skip
    crash = {"cluster": {"failures": ["crash:replica=0,at=0.5,restart=0.1", "add:at=0.1,startup=0.1,gpu=l40s"]}}
    alone, crashed = (servesim.simulate(settings | more).summary["offload"] for more in ({}, crash))
    per_replica = alone["capacity_tokens"] // 2
    assert crashed["capacity_tokens"] == 3 * per_replica
