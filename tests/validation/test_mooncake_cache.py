"""Mooncake's conversation trace: what a cache of a given size finds in it, by itself and inside an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from servesim.policies.kv._radix import RadixTree
from servesim.run.simulate import simulate
from servesim.traces import open_trace
from servesim.traces.prefix import shared_prefix_tokens
from servesim.workload.content import RunContent
from servesim.workload.trace import Trace
from tests.support.cache_replay import replay_cache

BLOCK = 512
PUBLISHED = {1_000: 0.045, 3_000: 0.066, 10_000: 0.215, 30_000: 0.332, 50_000: 0.362, 100_000: 0.371, None: 0.374}


@pytest.fixture(scope="module")
def conversations(request: pytest.FixtureRequest) -> Trace:
    find: Callable[[str], Path] = request.getfixturevalue("shared_data")
    return open_trace(str(find("traces/mooncake/conversation_trace.jsonl")))


@pytest.mark.slow
def test_lru_finds_what_others_have_counted(conversations: Trace) -> None:
    for num_blocks, rate in PUBLISHED.items():
        got = replay_cache(conversations, num_blocks, BLOCK).token_hit_rate
        print(f"{num_blocks or 'unbounded':>9} blocks: {got:.4f} of prompt tokens found ({rate:.3f} counted elsewhere)")
        assert abs(got - rate) <= 0.003


@pytest.mark.slow
def test_no_eviction_beats_the_one_that_knows_the_future(conversations: Trace) -> None:
    for num_blocks in (1_000, 10_000, 50_000):
        lru, best = (
            replay_cache(conversations, num_blocks, BLOCK, eviction=eviction).token_hit_rate
            for eviction in ("lru", "belady")
        )
        print(f"{num_blocks:>9} blocks: LRU {lru:.3f}, knowing the future {best:.3f}")
        assert lru <= best <= PUBLISHED[None] + 0.003


def test_hash_radix_and_trie_count_the_same_where_nothing_is_evicted(conversations: Trace) -> None:
    """Full prompts, token by token: the radix tree finds what a trie of runs does; by blocks the hash chain too."""
    assert conversations.content is not None
    trie = shared_prefix_tokens(conversations.content)
    tree, radix = RadixTree(), []
    for row, length in enumerate(conversations.prompt_len.tolist()):
        content = RunContent(row, conversations.content.runs(row))
        radix.append(tree.find(content, length)[0])
        tree.insert(content, length)
    assert radix == trie.tolist()
    whole = trie == conversations.prompt_len
    by_block = int(np.where(whole, conversations.prompt_len, trie // BLOCK * BLOCK).sum())
    assert replay_cache(conversations, None, BLOCK).hit_tokens == by_block


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [1_000, 10_000])
def test_an_engine_finds_what_the_cache_alone_does_or_less(conversations: Trace, num_blocks: int) -> None:
    """To the 0.003 of the figures above: an engine spends no block on partial ones, which nobody else asks for."""
    trace = conversations.take(np.arange(5_000))
    alone = replay_cache(trace, num_blocks, BLOCK).token_hit_rate
    full = replay_cache(trace, num_blocks, BLOCK, rule="full").token_hit_rate
    best = replay_cache(trace, num_blocks, BLOCK, rule="full", eviction="belady").token_hit_rate
    engine = {"block_size": BLOCK, "num_gpu_blocks": num_blocks + 1, "ignore_memory": True}
    runs = [
        simulate(trace=trace, model="llama-3.1-8b", gpu="h200", tp=8, engine=engine, kv=kv)
        for kv in ("prefix-hash", "prefix-oracle")
    ]
    inside, oracle = (run.summary["prefix_cache"]["hit_rate"] for run in runs)
    print(
        f"{num_blocks} blocks: the cache alone {alone:.4f}, {full:.4f} without partial blocks; in vLLM {inside:.4f}: "
        f"there running requests hold {runs[0].summary['kv']['used_share']:.0%} of memory on average, what they "
        "generate takes blocks no prompt asks for, and a prompt's blocks become least recently used when it has "
        f"finished, the last first. Knowing the future: {best:.4f}, in vLLM {oracle:.4f}"
    )
    assert inside <= alone + 0.003
    assert inside < oracle <= best + 0.003
