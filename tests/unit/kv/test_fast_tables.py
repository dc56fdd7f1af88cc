"""Block tables in fast mode, by hand and against tables that grow step by step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servesim.contracts import MISS, KVMemory, NoParams, Request, State
from servesim.contracts.request import ParentRequest
from servesim.engine.fast.kv import FastPaged, FastPrefixHash
from servesim.policies.kv._prefix_hash_params import PrefixHashParams
from servesim.policies.kv.paged import Paged


class Word:
    """A prompt and its answer as letters."""

    def __init__(self, text: str) -> None:
        self.text = text

    def prefix_key(self, stop: int) -> Hashable:
        return self.text[:stop]


def request(row: int, prompt: int, computed: int = 0) -> Request:
    made = Request(row, str(row), prompt, 1000, 0)
    made.state, made.num_computed_tokens = State.RUNNING, computed
    return made


def held(kv: Any, *prompts: int) -> list[Request]:
    """Requests that have computed their prompts."""
    found = [request(row, prompt) for row, prompt in enumerate(prompts)]
    for each in found:
        kv.admit(each, MISS, each.prompt_len, 0)
        each.num_computed_tokens = each.prompt_len
    return found


SIZE = 4


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 3), min_size=8, max_size=8)), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(1, 8),
    st.integers(6, 40),
    st.integers(25, 32),
)
@example([(8, [4] * 8)], 0, 2, 4, 32)  # one is free, for the first of two rounds
@example([(8, [1] * 8)], 0, 1, 3, 32)  # none is free, one would be needed
@example([(9, [3] * 8)], 0, 5, 6, 32)  # two blocks are free, three would be needed
@example([(9, [3] * 8)], 0, 8, 6, 32)  # two blocks are free: 20 tokens
@example([(9, [1] * 8), (4, [4] * 8)], 0, 3, 7, 32)  # two blocks are free, for one of two requests
@example([(4, [1] * 8)], 3, 2, 3, 32)  # one block is free, for the slots ahead of the first round
@example([(9, [3] * 8)], 0, 8, 40, 28)  # as many blocks as the context has, and no more
def test_rounds_of_drafts_take_the_blocks_that_growing_step_by_step_takes(
    rows: list[tuple[int, list[int]]], ahead: int, limit: int, blocks: int, longest: int
) -> None:
    """Requests of some tokens gain one to three in each round; `ahead` of those known have slots besides, none has more
    than `longest`, in whole blocks or not."""
    prompts = [prompt for prompt, _ in rows]
    if sum(-(-prompt // SIZE) for prompt in prompts) >= blocks:
        return
    fast, plain = (
        FastPaged(NoParams(), KVMemory(blocks, SIZE, longest)),
        Paged(NoParams(), KVMemory(blocks, SIZE, longest)),
    )
    members, others = held(fast, *prompts), held(plain, *prompts)
    known = [(prompt + np.cumsum(gains)).tolist() for prompt, gains in rows]
    fitting = 0
    grown: dict[int, int] = {}
    for i in range(limit):
        ends = [min(row[i] + ahead, longest) for row in known]
        before = plain.num_free_blocks()
        if sum(max(-(-end // SIZE) - len(plain._tables[r]), 0) for end, r in zip(ends, others, strict=True)) > before:
            break
        for end, r in zip(ends, others, strict=True):
            r.num_computed_tokens = end
            assert plain.grow(r, 0)
        fitting = i + 1
        if (taken := before - plain.num_free_blocks()) > 0:
            grown[fitting] = taken * SIZE
    found = fast.turns.rounds_that_fit(members, known, ahead, limit)
    assert found == fitting
    if fitting:
        assert fast.turns.grow_rounds(members, known, ahead, fitting) == list(grown.items())
        assert [list(fast._tables[r]) for r in members] == [list(plain._tables[r]) for r in others]


@pytest.mark.parametrize(("blocks", "fits"), [(8, False), (9, True)])
def test_samples_to_be_forked_need_blocks_behind_the_shared_ones(blocks: int, fits: bool) -> None:
    """40 tokens are two whole blocks of 16 and a half-filled one; with 8 more to come each of three samples needs that
    and one that might have to be free: 2 + 3 * 2, and block 0 is never given out."""
    kv = Paged(NoParams(), KVMemory(blocks, 16, 1000))
    one = Request(0, "0", 40, 8, 0)
    one.parent = ParentRequest(0, unforked=2)
    assert one.num_sequences == 3
    assert kv.fits(one) is fits


@pytest.mark.parametrize("committed", [(0, 0, 1, 2, 3), (0, 0, 1, 2, 4), (0, 0, 1, 2, 5), (0, 0, 1, 2, 30)])
def test_a_block_is_published_however_many_turns_end_between_two_plans(committed: tuple[int, ...]) -> None:
    """A prompt of 4 tokens and a first output; in turn t it computes token 4 + t. Once three turns have ended, all 8
    tokens of two blocks are known, and another request of the same content finds them."""
    text = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 3
    kv = FastPrefixHash(PrefixHashParams(), KVMemory(40, 4, 100))
    one, other = (Request(row, str(row), length, 60, 0, content=Word(text)) for row, length in ((0, 4), (1, 9)))
    kv.admit(one, MISS, 4, 0)
    one.state, one.num_computed_tokens = State.RUNNING, 4
    one._num_tokens = 5
    assert kv.grow(one, 4)
    assert kv.turns.join(one, 4, 5)
    for turn, ended in enumerate(committed):
        assert kv.lookup(other).num_tokens <= 4
        assert kv.turns.extend(turn, ended)
    assert kv.lookup(other).num_tokens == 8


def test_no_rounds_are_taken_at_once_while_samples_share_a_block_that_is_not_full() -> None:
    kv = FastPaged(NoParams(), KVMemory(40, 4, 100))
    (one,) = held(kv, 6)
    assert kv.turns.rounds_that_fit([one], [[7, 8]], 0, 2) == 2
    kv.fork(one, request(1, 6, 6))
    assert kv.turns.rounds_that_fit([one], [[7, 8]], 0, 2) == 0


def test_rounds_of_drafts_publish_the_blocks_that_are_known_when_they_end() -> None:
    """Five tokens are known, then 7, 8 and 13: after two rounds two blocks of four, after three three."""
    for rounds, found in ((1, 4), (2, 8), (3, 12)):
        kv = FastPrefixHash(PrefixHashParams(), KVMemory(40, 4, 100))
        one, other = (
            Request(row, str(row), length, 60, 0, content=Word("A" * 99)) for row, length in ((0, 4), (1, 30))
        )
        kv.admit(one, MISS, 4, 0)
        one.state, one.num_computed_tokens = State.RUNNING, 4
        one._num_tokens = 5
        kv.turns.grow_rounds([one], [[7, 8, 13]], 2, rounds)
        assert kv.lookup(other).num_tokens == found


def test_a_request_that_holds_more_than_it_fills_wakes_when_it_has_filled_it() -> None:
    """A request of 5 tokens holds four blocks of 4: it needs its next one with token 17, at turn 12, and no run may go
    past that. Another, of 8 in two blocks, needs one at once and again at turns 4, 8 and 12."""
    kv = FastPaged(NoParams(), KVMemory(40, 4, 100))
    (full,) = held(kv, 8)
    sleeper = request(1, 5)
    kv.admit(sleeper, MISS, 5, 11)
    assert (kv.turns.join(full, 8, 8), kv.turns.join(sleeper, 4, 5)) == (True, True)
    assert [kv.turns.steps_until_full(turn, 20, 0) for turn in (0, 2)] == [12, 10]
    assert [kv.turns.steps_until_full(0, limit, 0) for limit in (12, 11)] == [12, 11]
    for turn in range(13):
        assert kv.turns.extend(turn, turn)
        kv.turns.complete_all()
        sizes = len(kv._tables[full]), len(kv._tables[sleeper])
        assert sizes == (3 + turn // 4, 4 if turn < 12 else 5)
    assert kv.turns.steps_until_full(13, 20, 0) == 20


def test_a_request_with_too_few_blocks_or_content_known_ahead_grows_by_itself() -> None:
    """Two blocks of four: eight tokens may join, nine may not; nor may any where a block's hash reads on."""
    for params, num_tokens, joins in (({}, 8, True), ({}, 9, False), ({"hash_lookahead_tokens": 1}, 8, False)):
        kv = FastPrefixHash(PrefixHashParams(**params), KVMemory(40, 4, 100))
        one = Request(0, "0", 8, 60, 0, content=Word("A" * 99))
        kv.admit(one, MISS, 8, 0)
        one.state, one.num_computed_tokens = State.RUNNING, 8
        assert kv.turns.join(one, 8, num_tokens) is joins


@pytest.mark.parametrize("kind", [FastPaged, FastPrefixHash])
def test_a_turn_that_needs_more_than_is_free_is_not_taken(kind: Any) -> None:
    """Both blocks are taken: the eighth token has a place, the ninth none."""
    kv = kind(PrefixHashParams() if kind is FastPrefixHash else NoParams(), KVMemory(3, 4, 100))
    one = Request(0, "0", 7, 60, 0, content=Word("A" * 99))
    kv.admit(one, MISS, 8, 0)
    one.state, one.num_computed_tokens = State.RUNNING, 7
    assert kv.turns.join(one, 7, 8)
    assert [kv.turns.extend(turn, turn) for turn in range(2)] == [True, False]
    assert kv.num_free_blocks() == 0


@pytest.mark.parametrize(("ended", "found"), [(3, 8), (2, 4)])
def test_what_a_member_knew_is_published_when_it_leaves(ended: int, found: int) -> None:
    """After three turns all of two blocks of four are known, after two one token of them is not."""
    kv = FastPrefixHash(PrefixHashParams(), KVMemory(40, 4, 100))
    one, other = (Request(row, str(row), length, 60, 0, content=Word("A" * 99)) for row, length in ((0, 4), (1, 30)))
    kv.admit(one, MISS, 4, 0)
    one.state, one.num_computed_tokens = State.RUNNING, 4
    one._num_tokens = 5
    assert kv.grow(one, 4)
    assert kv.turns.join(one, 4, 5)
    kv.turns._committed = ended
    assert kv.lookup(other).num_tokens == 4
    kv.turns.leave(one, 4)
    assert kv.lookup(other).num_tokens == found
    assert kv.turns._filling == {}


def test_none_joins_while_samples_share_a_block_that_is_not_full() -> None:
    kv = FastPaged(NoParams(), KVMemory(40, 4, 100))
    one, other = held(kv, 6, 6)
    assert kv.turns.join(other, 6, 6)
    kv.fork(one, request(2, 6, 6))
    assert not kv.turns.join(one, 6, 6)
