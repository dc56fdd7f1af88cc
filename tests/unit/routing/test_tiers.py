"""Blocks in memory beyond the GPU in routers' scores, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servesim.contracts import Request
from servesim.contracts.kv_events import BlockRemoved, BlockStored, Medium
from servesim.policies.routing._block_sets import BlockSets, block_keys
from servesim.policies.routing._dynamo import DynamoRouter
from servesim.policies.routing._llm_d import LlmDRouter
from tests.support.routing import Prompts, router_of, views_of

RUN = (1, 96)  # 6 blocks


def stored(request: Request, blocks: range, medium: Medium) -> BlockStored:
    keys = block_keys(request, 16)
    return BlockStored(
        tuple(keys[i] for i in blocks), keys[blocks.start - 1] if blocks.start else None, 16, medium=medium
    )


def router_with(name: str, held: dict[int, dict[Medium, range]], **params: Any) -> tuple[Any, Request]:
    """A router of some replicas that hold blocks of a prompt, and the prompt."""
    router, prompt = router_of(name, len(held), **params), Prompts()(RUN)
    for replica, media in held.items():
        for medium, blocks in media.items():
            router.on_kv_events(replica, [stored(prompt, blocks, medium)])
    return router, prompt


HELD: dict[int, dict[Medium, range]] = {
    0: {"gpu": range(3)},
    1: {"gpu": range(1), "cpu": range(5)},  # 4 blocks continue the first
    2: {"cpu": range(2), "storage": range(6)},  # 2 blocks, and 4 after them
    3: {"gpu": range(2), "storage": range(3, 6)},  # a gap after the second block
}


def test_dynamo_credits_blocks_that_continue_those_on_the_gpu_by_their_memory() -> None:
    router, prompt = router_with("dynamo-kv", HELD)
    assert isinstance(router, DynamoRouter)
    counters = router.counters(prompt)
    assert counters.overlap_blocks.tolist() == [3, 1, 0, 2]
    credit = router.lower_credit(router.keys(prompt), counters.overlap_blocks)
    assert credit is not None
    assert credit.tolist() == [0, 3.0, 2 * 0.75 + 4 * 0.25, 0]
    assert counters.potential_prefill_tokens.tolist() == [96 - 48, 96 - 64, 96 - 40, 96 - 32]
    costs = router.costs(prompt, counters, range(4))
    assert costs.tolist() == [3 + 6, 2 + 6, 3.5 + 6, 4 + 6]
    assert router.route(prompt, views_of(4)) == 1
    assert [router.cached_tokens(prompt, i) for i in range(4)] == [48, 64, 40, 32]


def test_a_sent_prompt_is_booked_less_what_counts_as_cached_in_any_memory() -> None:
    router, prompt = router_with("dynamo-kv", HELD)
    router.on_sent(prompt, 2)
    assert router.prefill_tokens.tolist() == [0, 0, 56, 0]


def test_dynamos_weights_are_parameters_and_0_ignores_the_memory() -> None:
    router, prompt = router_with("dynamo-kv", HELD, host_cache_hit_weight=0, disk_cache_hit_weight=1)
    assert router.lower_credit(router.keys(prompt), np.array([3, 1, 0, 2])).tolist() == [0, 0, 4, 0]


def test_llm_d_counts_each_leading_block_for_the_best_memory_that_has_it() -> None:
    router, prompt = router_with("llm-d-precise", HELD)
    assert isinstance(router, LlmDRouter)
    shares = [round(6 * share, 9) for share in router.prefix_shares(prompt)]
    assert shares == [3, 1 + 4 * 0.8, 2 * 0.8 + 4 * 0.3, 2]
    assert [router.cached_tokens(prompt, i) for i in range(4)] == [48, 80, 96, 32], "not weighted"


@pytest.mark.parametrize("name", ["dynamo-kv", "llm-d-precise"])
def test_what_was_dropped_counts_no_more_and_a_crash_takes_host_memory_with_it(name: str) -> None:
    router, prompt = router_with(name, HELD)
    router.on_kv_events(1, [BlockRemoved(tuple(block_keys(prompt, 16)[1:2]), "cpu")])
    assert router.cached_tokens(prompt, 1) == 16
    router.on_replica(2, "failed")
    assert router.cached_tokens(prompt, 2) == 0


def test_a_prefix_is_continued_from_where_each_replica_has_it() -> None:
    sets = BlockSets()
    sets.add(0, "bc")
    sets.add(1, "acd")
    assert sets.continued("abcd", np.array([1, 0])).tolist() == [3, 1]
    assert sets.continued("abcd", np.array([0, 2])).tolist() == [0, 4]
    assert sets.continued("abcd", np.array([4, 4])).tolist() == [4, 4]
