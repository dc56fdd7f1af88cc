"""HiCache under SGLang's scheduler, with times computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.engine.cluster import Cluster
from tests.support.offloaded import Hierarchy, memories, offloaded
from tests.support.worlds import ToyCost, World, toy_trace
from tests.unit.engine.test_remote_kv import rows

COST = ToyCost(fixed=100, token=1, context=0)  # 100 ns a step, one a token and one a request that samples
MODES = ("reference", "fast")


def run(mode: str, host: Hierarchy) -> tuple[Cluster, Any]:
    """Two requests with the same 64 tokens in front, and one between whose 75 tokens take all memory."""
    runs = [[(1, 64), (10, 8)], [(2, 75)], [(1, 64), (11, 8)]]
    trace = toy_trace([0, 2_000, 5_000], [72, 75, 72], [1, 1, 1], runs=runs)
    world = World(trace, cost=COST, scheduler="sglang", kv="prefix-radix:page_size=16", num_blocks=6)
    cluster = offloaded(world, mode, host)
    cluster.run()
    return cluster, memories(cluster)[0].counts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ns_per_block", "took"),
    [
        (10, 109 + 4),  # loading 4 blocks takes 40 ns: a tenth of it shows before the first of 10 layers
        (100, 400 + 10),  # 400 ns: a tenth of the computing is left after the last
    ],
)
def test_the_step_begins_with_its_first_layer_s_kv_and_ends_after_the_last(
    mode: str, ns_per_block: int, took: int
) -> None:
    """Row 2 loads the 64 tokens that row 1 pushed off the GPU and computes 8 (100 + 8 + 1 ns)."""
    cluster, counts = run(mode, Hierarchy(100, ns_per_block=ns_per_block))
    assert rows(cluster, "scheduled_ns", "first_token_ns", "hit_tokens")[2] == [5_000, 5_000 + took, 0]
    assert counts.first_tokens == {2: 64}
    assert counts.load_ns == [4 * ns_per_block]


def test_blocks_of_64_tokens_are_found_whole() -> None:
    _, counts = run("reference", Hierarchy(100, factor=4))
    assert counts.first_tokens == {2: 64}
    _, counts = run("reference", Hierarchy(100, factor=3))
    assert counts.first_tokens == {2: 48}


def test_steps_do_not_wait_for_what_they_store() -> None:
    cluster, counts = run("reference", Hierarchy(100, ns_per_block=100))
    assert [each[0] for each in rows(cluster, "first_token_ns")[:2]] == [173, 2_176]
    assert counts.stored_tokens == 64 + 64, "row 2 has nothing new in whole blocks"


def test_a_prompt_is_stored_when_it_is_whole_and_the_answer_as_it_grows() -> None:
    """72 tokens in chunks of 32, and 9 generated, the last of which has no KV: 5 blocks."""
    params = {"chunked_prefill_size": 32}
    world = World(
        toy_trace([0], [72], [9]),
        cost=COST,
        scheduler="sglang",
        scheduler_params=params,
        kv="prefix-radix:page_size=16",
        num_blocks=8,
    )
    cluster = offloaded(world, "reference", Hierarchy(100))
    seen: list[int] = []
    cache = memories(cluster)[0]
    ran = cache.ran

    def watched(requests: Any, begin_ns: int, end_ns: int) -> int:
        ends = int(ran(requests, begin_ns, end_ns))
        seen.append(cache.counts.stored_tokens)
        return ends

    cache.ran = watched
    cluster.run()
    assert seen == [0, 0, 64, *[64] * 7, 80]


def test_selective_writing_waits_for_the_second_time() -> None:
    _, counts = run("reference", Hierarchy(100, hits=2))
    assert (counts.first_tokens, counts.stored_tokens) == ({}, 64)
