"""`Evicting`, the base of prefix caches that differ in what they give up: one method, in both modes the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.checking.check import check
from servesim.checking.subject import Subject
from servesim.engine.fast.core import FastCore
from servesim.policies.kv.evicting import Evicting
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.agreement import Outcome, difference
from tests.support import based_policies
from tests.support.examples import examples
from tests.support.strategies import social_worlds, worlds
from tests.support.worlds import World, toy_trace

FILE = based_policies.__file__
SECOND = 10**9


def one_after_the_other(*families: int, tokens: int = 48) -> Any:
    """Prompts of one content each, long enough apart not to meet; one token beyond full blocks."""
    n = len(families)
    runs = [[(family, tokens), (100 + i, 1)] for i, family in enumerate(families)]
    return toy_trace([i * SECOND for i in range(n)], [tokens + 1] * n, [1] * n, runs=runs)


def hits(kv: str, *families: int) -> list[int]:
    """Hit tokens of each request, with eight blocks; each prompt fills three and begins a fourth."""
    rows = World(one_after_the_other(*families), kv, 9).run(check=True).recorder.requests.array()
    return rows[np.argsort(rows[:, 0]), REQUEST_COLUMNS.index("hit_tokens")].tolist()


def test_the_block_of_the_least_rank_goes_first() -> None:
    """What was hit twice outlives two newcomers, where the least recently used goes; the most recently used goes where
    that is asked for."""
    families = (1, 1, 1, 2, 3, 4, 1)
    assert hits("prefix-hash", *families)[-1] == 0
    assert hits(f"{FILE}:Lru", *families)[-1] == 0
    assert hits(f"{FILE}:Lfu", *families)[-1] == 48
    assert hits(f"{FILE}:Mru", 1, 2, 3, 4, 1)[-1] > hits("prefix-hash", 1, 2, 3, 4, 1)[-1]


def test_the_ends_of_prompts_go_first_where_depth_is_the_rank() -> None:
    assert hits(f"{FILE}:Shallow", 1, 2, 3, 4, 1) != hits(f"{FILE}:Lru", 1, 2, 3, 4, 1)
    assert hits(f"{FILE}:Shallow", 1, 2, 3, 4, 1)[-1] == 16, "the first block of each prompt is kept"


def test_blocks_know_how_deep_they_lie_how_often_they_were_hit_and_when_they_were_used_last() -> None:
    world = World(one_after_the_other(1, 2, 1), f"{FILE}:Lfu", 100)
    cluster = world.run(check=True)
    kv = cluster.replicas[0].core.kv
    assert isinstance(kv, Evicting)
    told = sorted((b.depth, b.hits, b.last_used) for b in kv.full.values())
    assert told == [(0, 0, 4), (0, 1, 6), (1, 0, 4), (1, 1, 6), (2, 0, 4), (2, 1, 6)]
    assert len({b.key for b in kv.full.values()}) == 6


def test_without_a_rank_a_run_ends_with_one_line_that_says_so() -> None:
    failures = check(Subject.of(f"{FILE}:RanklessCache"), range(4)).failures
    assert len(failures) == 1
    assert "RanklessCache has no method rank" in failures[0]


def test_a_cache_derived_from_the_fast_class_is_counted_in_lockstep_and_another_is_not() -> None:
    def lockstep(kv: str) -> bool:
        core = World(one_after_the_other(1), f"{FILE}:{kv}").cluster("fast").replicas[0].core
        assert isinstance(core, FastCore)
        return core.lockstep is not None

    assert lockstep("FastLfu")
    assert not lockstep("Lfu")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["Lfu", "FastLfu", "Shallow"])
def test_a_cache_on_it_passes_the_check_of_policies(name: str) -> None:
    assert check(Subject.of(f"{FILE}:{name}"), range(20)).failures == []


CACHES = st.sampled_from(["Lfu", "FastLfu", "Lru", "Mru", "Shallow", "FastLfu:free_order=back"])


def of_caches(name: str) -> st.SearchStrategy[World]:
    kv = f"{FILE}:{name}"
    return st.one_of(worlds(kv=kv), social_worlds(kv=kv, samples=True))


@examples(80)
@given(CACHES.flatmap(of_caches))
def test_fast_equals_plain_stepping(world: World) -> None:
    fast, plain = world.run("fast", check=True), world.run("reference", check=True)
    assert difference(Outcome.of(fast), Outcome.of(plain)) == ""


@examples(60)
@given(worlds(kv="prefix-hash"))
def test_where_all_ranks_are_equal_it_is_the_hash_cache(world: World) -> None:
    other = replace(world, kv=f"{FILE}:Lru")
    assert difference(Outcome.of(other.run(check=True)), Outcome.of(world.run("reference")), "in prefix-hash") == ""


@examples(60)
@given(worlds(kv=f"{FILE}:Lfu"))
def test_plain_and_fast_base_come_to_the_same(world: World) -> None:
    other = replace(world, kv=f"{FILE}:FastLfu")
    assert difference(Outcome.of(other.run(check=True)), Outcome.of(world.run("reference")), "by the plain base") == ""
