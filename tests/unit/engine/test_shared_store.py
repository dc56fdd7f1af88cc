"""A store of KV that all replicas share, by hand: every step takes 1,000 ns, a block of 16 tokens is a byte and takes
1,000 ns from or to the store. Rows 0 and 2 have the same 64 tokens in front."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from servesim.engine.cluster import Cluster
from servesim.features.failures.part import Crash, Failing, Failures
from servesim.features.offload.lru import Lru
from servesim.features.offload.memory import Block
from servesim.features.offload.params import LMCacheParams, StoreParams
from servesim.features.offload.part import Offloading
from servesim.features.offload.tiers import Channel
from tests.support.offloaded import memories, setup_of
from tests.support.worlds import ToyCost, World, toy_trace

MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
HEAD = [(1, 64), (10, 8)]
STORE = StoreParams("400", 0.001)


def served(
    params: Any, mode: str, arrivals: list[int], runs: list[list[tuple[int, int]]], *, replicas: int = 2, **more: Any
) -> Cluster:
    """Requests sent to the replicas in turn, with one such connector each. `crash`: that of replica 0."""
    crash = more.pop("crash", None)
    prompts = [sum(length for _, length in run) for run in runs]
    trace = toy_trace(arrivals, prompts, [1] * len(runs), runs=runs)
    world = World(trace, cost=ToyCost(fixed=1000, token=0, context=0), kv="prefix-hash", num_blocks=6, **more)
    failures = Failures((Crash(0, crash, 1_000),) if crash is not None else (), backoff_ns=500, jitter=0.0)
    memory = setup_of(params, 16, 1, 6)
    world = replace(
        world,
        replicas=replicas,
        router="round-robin",
        features=(
            lambda world, pools: Failing(failures),
            lambda world, pools: Offloading([(pool, memory) for pool in pools]),
        ),
    )
    return world.run(mode, check=True)


def first_tokens(cluster: Cluster) -> list[int]:
    table = cluster.recorder.requests
    found = dict(zip(table.column("row").tolist(), table.column("first_token_ns").tolist(), strict=True))
    return [found[row] for row in sorted(found)]


@MODES
@pytest.mark.parametrize(
    ("second", "first_token", "loaded"),
    [
        (4_999, 5_999, {}),  # written from 1,000 to 5,000
        (5_000, 10_000, {"store": 64}),  # 4,000 ns of reading, and a step
        (20_000, 25_000, {"store": 64}),
    ],
)
def test_a_replica_finds_the_prompt_of_another_once_it_is_written(
    mode: str, second: int, first_token: int, loaded: dict[str, int]
) -> None:
    cluster = served(STORE, mode, [0, second], [HEAD, [(1, 64), (11, 8)]])
    assert first_tokens(cluster) == [1_000, first_token]
    assert [each.counts.tier_tokens for each in memories(cluster)] == [{}, loaded]


@MODES
def test_two_readers_at_once_share_the_bandwidth_of_the_store(mode: str) -> None:
    runs = [HEAD, [(1, 64), (11, 8)], [(1, 64), (12, 8)]]
    both = {"mode": mode, "arrivals": [0, 20_000, 20_000], "runs": runs, "replicas": 3}
    own = served(StoreParams("400", 0.002), **both)  # 500 ns a block on the link of a replica
    assert first_tokens(own) == [1_000, 23_000, 23_000]
    shared = served(StoreParams("400", 0.002, server_gb_s=0.001), **both)  # 1,000 ns a block in the store
    assert first_tokens(shared) == [1_000, 25_000, 29_000]
    assert [each.counts.load_ns for each in memories(shared)] == [[], [4_000], [8_000]]


@MODES
def test_a_full_store_drops_what_was_asked_for_least_recently_the_end_of_a_prompt_first(mode: str) -> None:
    """Of six blocks four are row 0's. The four of row 1 take the place of its last two, and that of row 2 of one more:
    its first is left."""
    runs = [HEAD, [(2, 75)], [(3, 20)], [(1, 64), (11, 8)]]
    cluster = served(StoreParams("6", 0.001), mode, [0, 20_000, 30_000, 40_000], runs)
    assert memories(cluster)[1].counts.tier_tokens == {"store": 16}
    assert [each.counts.dropped_blocks for each in memories(cluster)] == [1, 2 + 3], "row 3 stores three more"


@MODES
def test_a_replica_that_crashed_finds_its_prefix_again(mode: str) -> None:
    runs = [HEAD, [(2, 75)], [(1, 64), (11, 8)]]
    back = served(STORE, mode, [0, 20_000, 60_000], runs, replicas=1, crash=50_000)
    assert memories(back)[0].counts.tier_tokens == {"store": 64}
    assert first_tokens(back)[2] == 60_000 + 4_000 + 1_000


@MODES
def test_the_crash_of_a_writer_loses_what_it_was_writing_and_nothing_else(mode: str) -> None:
    """Row 0 is in the store at 5,000, row 1, from the other replica, at 25,000, and row 2, from the first, at 28,000.
    If that crashes at 26,000 the other does not find row 2, and if it does at 29,000 it does."""
    runs = [HEAD, [(2, 75)], [(3, 75)], [(3, 75)], [(1, 64), (11, 8)], [(2, 75)]]
    arrivals = [0, 20_000, 23_000, 60_000, 80_000, 90_000]
    lost = served(STORE, mode, arrivals, runs, crash=26_000)
    kept = served(STORE, mode, arrivals, runs, crash=29_000)
    found = [[each.counts.first_tokens for each in memories(run)] for run in (lost, kept)]
    assert 3 not in found[0][1], "computed again"
    assert found[1][1][3] == 64
    assert found[0][0][4] == found[1][0][4] == 64, "what was written before stays"


@MODES
def test_replicas_of_a_node_share_host_memory_of_lmcache_and_those_of_others_do_not(mode: str) -> None:
    for per_node, found in ((2, {"cpu": 64}), (0, {}), (1, {})):
        params = LMCacheParams(cpu="400", chunk_size=16, gb_s=1.0, replicas_per_node=per_node)
        cluster = served(params, mode, [0, 20_000], [HEAD, [(1, 64), (11, 8)]])
        assert memories(cluster)[1].counts.tier_tokens == found
    params = LMCacheParams(cpu="400", chunk_size=16, gb_s=1.0, replicas_per_node=1)
    runs = [HEAD, [(2, 75)], [(1, 64), (11, 8)]]
    back = served(params, mode, [0, 20_000, 60_000], runs, replicas=1, crash=50_000)
    assert memories(back)[0].counts.tier_tokens == {"cpu": 64}, "the process of the node outlives the engine"


def test_what_any_replica_has_pinned_stays() -> None:
    memory = Lru(2)
    for key in ("one", "other"):
        memory.insert(key, Block(ready_ns=0))
    memory.pins = [{"one"}, set()]
    assert memory.prepare(["third"], now=10) is not None
    assert memory.get("one") is not None, "although it is the oldest"
    assert memory.get("other") is None
    assert memory.prepare(["third", "fourth"], now=10) is None, "one is pinned, and one is written"


def test_a_channel_fills_gaps_and_else_queues() -> None:
    channel = Channel(1_000_000_000)  # a byte a ns
    assert channel.copy(100, 1_000) == 1_100
    assert channel.copy(100, 0) == 100, "before it"
    assert channel.copy(100, 1_050) == 1_200, "behind it"
    assert channel.copy(900, 50) == 1_000, "just fits the gap"
    assert channel.copy(1, 0) == 1_201, "one period by now"
    assert channel.busy_ns == 1_201
