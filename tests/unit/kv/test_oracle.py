"""Belady inside the engine: what it keeps, what it must be told, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from servesim.contracts import Request
from servesim.errors import UserError
from servesim.records.columns import REQUEST_COLUMNS
from servesim.workload.trace import After
from servesim.workload.workload import Clients
from tests.support.examples import examples
from tests.support.strategies import worlds
from tests.support.worlds import World, toy_trace

SECOND = 10**9


def hits(world: World) -> list[int]:
    rows = world.run(check=True).recorder.requests.array()
    return rows[np.argsort(rows[:, 0]), REQUEST_COLUMNS.index("hit_tokens")].tolist()


def one_after_the_other(*families: int, tokens: int = 48) -> Any:
    """Prompts of one content each, long enough apart not to meet; one token beyond full blocks."""
    n = len(families)
    runs = [[(family, tokens), (100 + i, 1)] for i, family in enumerate(families)]
    return toy_trace([i * SECOND for i in range(n)], [tokens + 1] * n, [1] * n, runs=runs)


def test_it_keeps_what_is_used_next_where_lru_keeps_what_was_used_last() -> None:
    """Eight blocks; each prompt fills three and begins a fourth. Of 1 2 3 round and round two blocks must go each
    round: LRU takes them from the prompt that comes next, Belady from the one after."""
    trace = one_after_the_other(1, 2, 3, 1, 2, 3, 1, 2, 3)
    assert hits(World(trace, "prefix-hash", 9)) == [0, 0, 0, 16, 16, 16, 16, 16, 16]
    assert hits(World(trace, "prefix-oracle", 9)) == [0, 0, 0, 48, 16, 48, 16, 48, 16]


def test_what_nobody_asks_for_again_goes_first() -> None:
    trace = one_after_the_other(1, 2, 3, 1, 4, 1)
    assert hits(World(trace, "prefix-hash", 9)) == [0, 0, 0, 16, 0, 48]
    assert hits(World(trace, "prefix-oracle", 9)) == [0, 0, 0, 48, 0, 48]


def test_without_evictions_it_is_the_hash_cache() -> None:
    trace = one_after_the_other(1, 2, 1, 3, 2, 1)
    assert hits(World(trace, "prefix-oracle", 400)) == hits(World(trace, "prefix-hash", 400)) == [0, 0, 48, 0, 48, 48]


def test_a_future_that_depends_on_answers_is_refused_by_name() -> None:
    trace = one_after_the_other(1, 2, 1)
    chained = replace(trace, after=After.of([[], [(0, 1, 0, 0)], [(1, 1, 0, 0)]]))
    for world in (World(chained, "prefix-oracle"), World(trace, "prefix-oracle", clients=Clients(retries=1))):
        with pytest.raises(
            UserError, match="prefix-oracle needs to know future requests, but in this workload their order"
        ):
            world.cluster()
    with pytest.raises(UserError, match="which replica"):
        World(trace, "prefix-oracle", replicas=2).cluster()
    World(trace, "prefix-oracle", clients=Clients(max_concurrency=1)).cluster()  # the order is known, if not when


@examples(60)
@given(worlds(kv="prefix-oracle"))
def test_fast_equals_plain_stepping(world: World) -> None:
    alone = replace(world, replicas=1)
    fast, plain = alone.run("fast", check=True), alone.run("reference", check=True)
    assert sorted(fast.recorder.requests.array().tolist()) == sorted(plain.recorder.requests.array().tolist())


def test_requests_that_will_be_refused_use_no_block_again() -> None:
    """One may have 40 tokens and no more than 4 blocks of 16: 30 + 11 are too long, and 40 + 20 also do not fit."""
    kv: Any = World(toy_trace([0], [1], [1]), "prefix-oracle", 5, max_model_len=40).core().kv
    kv.foresee([Request(row, str(row), prompt, most, 0) for row, (prompt, most) in enumerate([(30, 10), (30, 11)])])
    assert [*kv._order] == [0]
    kv = World(toy_trace([0], [1], [1]), "prefix-oracle", 3, max_model_len=400).core().kv
    kv.foresee([Request(row, str(row), prompt, most, 0) for row, (prompt, most) in enumerate([(30, 2), (30, 60)])])
    assert [*kv._order] == [0]
