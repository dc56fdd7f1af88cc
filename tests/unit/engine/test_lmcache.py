"""KV in chunks in host memory, on a disk and in a store, with times computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.lru import Lru
from servesim.features.offload.tiers import Direction, Tier
from tests.support.worlds import ToyCost, World, toy_trace
from tests.unit.engine.test_remote_kv import rows

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples
MODES = ("reference", "fast")
CHUNK = 32


def tier(name: str, chunks: int, ns_per_chunk: int) -> Tier:
    """Memory whose links copy a chunk, of one byte a token, in so many ns."""
    rate = CHUNK * 1_000_000_000 // ns_per_chunk
    return Tier(name, Lru(chunks), Direction(rate, 0), Direction(rate, 0))


def cached(world: World, mode: str, *tiers: Tier, **more: Any) -> tuple[Cluster, LMCache]:
    """A cluster of one replica which has these tiers."""
    cluster = world.cluster(mode)
    cache = LMCache(tiers, block_tokens=CHUNK, token_bytes=1, **more)
    cluster.replicas[0].connect(cache)
    return cluster, cache


def twice(third_ns: int = 5_000, **more: Any) -> World:
    """Two requests with the same 64 tokens in front, and one between whose 75 tokens take all memory."""
    runs = [[(1, 64), (10, 8)], [(2, 75)], [(1, 64), (11, 8)]]
    trace = toy_trace([0, 2_000, third_ns], [72, 75, 72], [1, 1, 1], runs=runs)
    return World(trace, cost=COST, kv="prefix-hash", num_blocks=6, **more)


@pytest.mark.parametrize("mode", MODES)
def test_the_step_that_admits_a_request_begins_by_loading_and_ends_by_storing(mode: str) -> None:
    """Row 0 computes 72 tokens (100 + 72 + 1 ns), then stores 2 chunks of 10 ns. Row 1 (100 + 75 + 1 + 20 ns) pushes it
    off the GPU. Row 2 is admitted at once with 64 tokens, whose chunks take 20 ns, and computes 8 (100 + 8 + 1 ns);
    there is nothing more to store."""
    cluster, cache = cached(twice(), mode, tier("cpu", 100, 10))
    cluster.run()
    found = rows(cluster, "scheduled_ns", "first_token_ns", "hit_tokens")
    assert found == [[0, 193, 0], [2_000, 2_196, 0], [5_000, 5_129, 0]]
    assert (cache.counts.tier_tokens, cache.counts.first_tokens) == ({"cpu": 64}, {2: 64})
    assert (cache.counts.stored_tokens, cache.counts.load_ns) == (128, [20])
    assert cluster.replicas[0].core.stalled_ns == 20 + 20 + 20


@pytest.mark.parametrize("mode", MODES)
def test_what_host_memory_drops_comes_from_the_disk_and_enters_it_again(mode: str) -> None:
    """Host memory for 3 chunks: row 1's 2 take the place of row 0's first. It was written to the disk (100 ns a chunk)
    and takes 100 ns from there, then 20 ns for both to the GPU."""
    cluster, cache = cached(twice(), mode, tier("cpu", 3, 10), tier("disk", 100, 100))
    cluster.run()
    assert rows(cluster, "scheduled_ns", "first_token_ns")[2] == [5_000, 5_000 + 100 + 20 + 109]
    assert cache.counts.tier_tokens == {"cpu": 32, "disk": 32}
    assert cache.counts.dropped_blocks == 2
    assert [each.most for each in cache.tiers] == [3, 4]
    assert cache.tiers[1].writing.busy_ns == 400


@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_on_its_way_to_the_disk_stays_in_host_memory_and_cannot_be_read_from_the_disk(mode: str) -> None:
    """The disk takes 1 ms a chunk: row 1 finds both places of host memory taken and stores nothing."""
    cluster, cache = cached(twice(), mode, tier("cpu", 2, 10), tier("disk", 100, 1_000_000))
    cluster.run()
    assert rows(cluster, "first_token_ns")[1:] == [[2_176], [5_129]]
    assert cache.counts.refused == 1
    assert cache.counts.tier_tokens == {"cpu": 64}


def test_a_chunk_that_is_missing_hides_those_behind_it() -> None:
    """Of row 0's chunks the first is dropped: row 2 finds none."""
    cluster, cache = cached(twice(), "reference", tier("cpu", 100, 10))
    key = cache.keys
    seen: list[int] = []
    ran = cache.ran

    def drop(requests: Any, begin_ns: int, end_ns: int) -> int:
        ends = ran(requests, begin_ns, end_ns)
        for request in requests:
            if request.row == 0 and not seen:
                memory, first = cache.tiers[0].memory, key.of(request, 1)[0]
                block = memory.get(first)
                assert block is not None
                seen.append(block.ready_ns)
                memory.remove(first)
        return ends

    cache.ran = drop  # type: ignore[method-assign]
    cluster.run()
    assert seen == [193]
    assert cache.counts.tier_tokens == {}
    assert rows(cluster, "first_token_ns")[2][0] == 5_000 + 173 + 10, (
        "all is computed, and its first chunk stored again"
    )


def test_a_prompt_that_is_there_whole_still_computes_its_last_token() -> None:
    runs = [[(1, 64)], [(2, 75)], [(1, 64)]]
    trace = toy_trace([0, 2_000, 5_000], [64, 75, 64], [1, 1, 1], runs=runs)
    world = World(trace, cost=COST, kv="prefix-hash", num_blocks=6)
    cluster, cache = cached(world, "reference", tier("cpu", 100, 10))
    cluster.run()
    assert cache.counts.first_tokens == {2: 63}
    assert rows(cluster, "first_token_ns")[2] == [5_000 + 20 + 102]


@pytest.mark.parametrize(("save_decode", "stored"), [(False, 32), (True, 64)])
def test_what_is_generated_is_stored_where_asked_for(save_decode: bool, stored: int) -> None:
    world = World(toy_trace([0], [40], [30]), cost=COST, kv="prefix-hash", num_blocks=6)
    cluster, cache = cached(world, "reference", tier("cpu", 100, 10), save_decode=save_decode)
    cluster.run()
    assert cache.counts.stored_tokens == stored


def test_fewer_tokens_than_are_worth_it_are_computed() -> None:
    cluster, cache = cached(twice(), "reference", tier("cpu", 100, 10), least=65)
    cluster.run()
    assert cache.counts.load_ns == []
    assert rows(cluster, "first_token_ns")[2] == [5_173]


@pytest.mark.parametrize(("asked_before", "found"), [(True, {2: 64}), (False, {})])
def test_what_was_looked_up_stays_until_the_request_is_admitted(asked_before: bool, found: dict[int, int]) -> None:
    """Row 1 decodes 20 tokens when row 2 comes and finds no memory; meanwhile its own prompt is all that would go, or,
    if row 2 has not been looked up, 2 chunks of row 0 go for those of a prompt that grows."""
    runs = [[(1, 64), (10, 8)], [(2, 56)], [(1, 64), (11, 8)]]
    trace = toy_trace([0, 2_000, 2_010 if asked_before else 9_000], [72, 56, 72], [1, 24, 1], runs=runs)
    world = World(trace, cost=COST, kv="prefix-hash", num_blocks=6)
    cluster, cache = cached(world, "reference", tier("cpu", 3, 10), save_decode=True)
    cluster.run()
    assert cache.counts.first_tokens == found
    assert cache.counts.refused == 0
    assert not cache._pinned


def test_an_answer_that_cannot_be_is_refused() -> None:
    cluster, cache = cached(twice(), "reference", tier("cpu", 100, 10))
    cache.available = lambda request, num_tokens: -1  # type: ignore[method-assign]
    with pytest.raises(PolicyError, match=r"-1 tokens of .* are available elsewhere, after 0 that are local"):
        cluster.run()
