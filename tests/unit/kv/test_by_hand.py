"""Prefix caching by blocks, by hand: what is admitted over a hit, what is cached, when the cache may be forgotten."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from servesim.contracts import MISS, KVMemory, NoParams, Request, State
from servesim.contracts.request import ParentRequest
from servesim.policies.kv._block_tables import ids
from servesim.policies.kv._prefix_hash_params import PrefixHashParams
from servesim.policies.kv.paged import Paged
from servesim.policies.kv.prefix_hash import PrefixHash
from servesim.workload.content import RunContent

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Word:
    """A prompt and its answer as letters."""

    def prefix_key(self, stop: int) -> Hashable:
        return LETTERS[:stop]


def running(kv: PrefixHash, row: int, prompt: int) -> Request:
    """A request that has computed its prompt."""
    made = Request(row, str(row), prompt, 100, 0, content=Word())
    kv.admit(made, kv.lookup(made), prompt, 0)
    made.state, made.num_computed_tokens = State.RUNNING, prompt
    kv.publish(made, prompt)
    return made


def cache() -> PrefixHash:
    """Five blocks of four tokens."""
    return PrefixHash(PrefixHashParams(), KVMemory(6, 4, 100))


def test_a_hit_of_running_blocks_saves_as_many_as_it_has() -> None:
    """Two of five blocks are held. 20 tokens are five blocks, of which the hit has two and three are free; one token
    more takes a block more, whether it is computed now or later, and so does a reserve of one token."""
    kv = cache()
    running(kv, 0, 8)
    other = Request(1, "1", 22, 100, 0, content=Word())
    hit = kv.lookup(other)
    assert (hit.num_tokens, kv.idle_tokens(hit), kv.num_free_blocks()) == (8, 0, 3)
    asked = {(12, 0, 0): True, (13, 0, 0): False, (1, 20, 0): True, (1, 21, 0): False, (12, 0, 1): False}
    assert {args: kv.can_admit(other, hit, *args) for args in asked} == asked


def test_a_hit_of_idle_blocks_takes_them_off_the_free_list() -> None:
    """All five blocks are free, two of them cached: with those, 20 tokens take five and 21 six."""
    kv = cache()
    kv.free(running(kv, 0, 8))
    other = Request(1, "1", 22, 100, 0, content=Word())
    hit = kv.lookup(other)
    assert (hit.num_tokens, kv.idle_tokens(hit), kv.num_free_blocks()) == (8, 8, 5)
    assert [kv.can_admit(other, hit, now, 0, 0) for now in (12, 13)] == [True, False]


def test_full_blocks_are_cached_and_others_are_not_and_all_are_forgotten_when_none_is_held() -> None:
    kv = cache()
    one = running(kv, 0, 10)  # two full blocks and two tokens of a third
    table = list(kv.tables[one])
    assert [kv.is_cached(block) for block in table] == [True, True, False]
    assert kv.num_cached_hashes() == 2
    assert [kv.refs(block) for block in range(6)] == [int(block in table) for block in range(6)]
    assert kv.reset_prefix_cache() is False
    assert kv.num_cached_hashes() == 2
    kv.free(one)
    assert kv.reset_prefix_cache() is True
    assert (kv.num_cached_hashes(), kv.lookup(Request(1, "1", 10, 100, 0, content=Word()))) == (0, MISS)
    assert kv.num_free_blocks() == 5


def test_samples_that_come_back_from_host_memory_share_their_full_blocks_until_the_last_one_leaves() -> None:
    """Six tokens are a full block and half of another. Each sample writes to the half: one of them gets a copy."""
    kv = PrefixHash(PrefixHashParams(), KVMemory(6, 4, 100, 8))
    one = running(kv, 0, 6)
    other = Request(1, "1", 6, 100, 0, content=Word())
    other.state, other.num_computed_tokens = State.RUNNING, 6
    kv.fork(one, other)
    kv.swap_out(one, [other])
    assert kv.num_free_blocks() == 5
    kv.swap_in(one, 1, 0, [other])
    first, second = (list(kv.tables[each]) for each in (one, other))
    assert (first[0] == second[0], first[1] == second[1], kv.sharing()) == (True, False, (4, 1))
    kv.free(one)
    assert (kv.num_free_blocks(), kv.sharing()) == (3, (2, 0))
    kv.free(other)
    assert kv.num_free_blocks() == 5


def test_a_block_that_samples_share_is_copied_only_where_a_block_is_free() -> None:
    kv = PrefixHash(PrefixHashParams(), KVMemory(4, 4, 100))
    one = running(kv, 0, 6)
    other = Request(1, "1", 6, 100, 0, content=Word())
    other.state, other.num_computed_tokens = State.RUNNING, 6
    kv.fork(one, other)
    last = running(kv, 2, 3)
    assert (kv.num_free_blocks(), kv.grow(other, 1), list(kv.tables[other])) == (0, False, list(kv.tables[one]))
    kv.free(last)
    assert kv.grow(other, 1)
    assert kv.tables[other][1] != kv.tables[one][1]


def test_a_hit_may_end_within_what_was_cached_together() -> None:
    """Of a text in four blocks another request holds the first; of the rest, cached together, a third one finds two."""
    kv = PrefixHash(PrefixHashParams(), KVMemory(12, 4, 100))

    def text(row: int, length: int) -> Request:
        return Request(row, str(row), length, 100, 0, content=RunContent(row, [(1, length)]))

    one, other = text(0, 16), text(1, 5)
    for each in (one, other):
        kv.admit(each, kv.lookup(each), each.prompt_len - kv.lookup(each).num_tokens, 0)
        each.state, each.num_computed_tokens = State.RUNNING, each.prompt_len
        kv.publish(each, each.prompt_len)
    hit = kv.lookup(text(2, 13))
    assert (hit.num_tokens, kv.hit_blocks(hit)) == (12, list(kv.tables[one])[:3])


@pytest.mark.parametrize("split", [False, True])
def test_a_hit_may_go_on_within_what_another_request_cached_of_the_same_text(split: bool) -> None:
    """Two compute the same four blocks at once. Of those of the first, the last two are given up: the hit goes on with
    the last two of the second, whose blocks may be split just there before the request is admitted."""
    kv = PrefixHash(PrefixHashParams(), KVMemory(13, 4, 100))

    def text(row: int, length: int, word: int) -> Request:
        return Request(row, str(row), length, 100, 0, content=RunContent(row, [(word, length)]))

    one, other = both = text(0, 16, 1), text(1, 16, 1)
    for each in both:
        kv.admit(each, MISS, 16, 0)
    for each in both:
        each.state, each.num_computed_tokens = State.RUNNING, 16
        kv.publish(each, 16)
    first, second = (list(kv.tables[each]) for each in both)
    kv.free(one)
    large = text(2, 24, 2)
    kv.admit(large, MISS, 24, 0)
    kv.free(large)
    third = text(3, 17, 1)
    hit = kv.lookup(third)
    if split:
        kv._split(other_extent := kv._held[other][0], 2)
        assert other_extent.stop == 2
    assert (hit.num_tokens, kv.hit_blocks(hit)) == (16, [*first[:2], *second[2:]])
    kv.admit(third, hit, 1, 0)
    assert list(kv.tables[third])[:4] == [*first[:2], *second[2:]]
    assert all(extent.blocks for extent in kv._held[third])
    assert (kv.refs(second[1]), kv.refs(second[2]), kv.num_free_blocks()) == (1, 2, 5)
    kv.free(third)
    assert kv.num_free_blocks() == 8


def swapped(kv: Paged, *lengths: int) -> list[Request]:
    """Samples of one request in host memory, all forked off the first."""
    requests = [Request(row, str(row), length, 20, 0) for row, length in enumerate(lengths)]
    parent = ParentRequest(0, members=requests)
    for each in requests:
        each.parent, each.state, each.num_computed_tokens = parent, State.RUNNING, each.prompt_len
        kv.fork(requests[0], each) if each is not requests[0] else kv.admit(each, MISS, each.prompt_len, 0)
    kv.swap_out(requests[0], requests[1:])
    return requests


def test_what_samples_share_stays_in_host_memory_until_the_last_of_them_leaves() -> None:
    """Ten tokens are three blocks of four, which the first sample answers for: 12 tokens."""
    kv = Paged(NoParams(), KVMemory(9, 4, 100, host_blocks=5))
    first, second, third = swapped(kv, 10, 10, 10)
    assert [kv.drop_swapped(first), kv.drop_swapped(third)] == [0, 0]
    kv.check_integrity()
    assert kv.drop_swapped(second) == 3
    kv.check_integrity()


class Resting(Paged):
    """Memory in which requests do not grow as they come back."""

    resting = True

    def grow(self, request: Request, num_tokens: int, lookahead: int = 0) -> bool:
        return self.resting or super().grow(request, num_tokens, lookahead)


@pytest.mark.parametrize("others", [1, 2])
def test_samples_that_come_back_share_a_block_that_is_not_full_until_all_but_one_have_copied_it(others: int) -> None:
    """Ten tokens each: the third block has two slots that are not used, counted for each sample beyond the first."""
    kv = Resting(NoParams(), KVMemory(20, 4, 100, host_blocks=5))
    first, *rest = swapped(kv, *[10] * (1 + others))
    kv.swap_in(first, 1, 0, rest)
    assert (kv._overlap, kv.sharing()) == (2 * others, (3 * (1 + others), 3 * others))
    kv.resting = False
    for each in (first, *rest):
        assert kv.grow(each, 1)
    kv.held_tokens = 11 * (1 + others)
    kv.check_integrity()
    assert kv.num_free_blocks() == 19 - 3 - others


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"held_tokens": 99}, "negative memory"),
        ({"_host_free": 4}, "host blocks miscounted"),
        ({"_table_blocks": 4}, "table blocks miscounted"),
        ({"_extra": {1: 1}}, "holder counts do not match"),
        ({"_fresh._next": 3}, "a block that was never used is in use"),  # block 3 is the last one held
        ({"_fresh.num_blocks": 4}, "negative|lost"),
        ({"_fresh._top": 0}, "lost|never used"),
    ],
)
def test_an_allocator_that_miscounts_is_found(wrong: dict[str, object], told: str) -> None:
    kv = Paged(NoParams(), KVMemory(9, 4, 100, host_blocks=5))
    one = Request(0, "0", 10, 20, 0)
    kv.admit(one, MISS, 10, 0)
    kv.held_tokens = 10
    other = Request(1, "1", 4, 20, 0)
    kv.admit(other, MISS, 4, 0)
    kv.free(other)  # block 4, which is free again
    kv.check_integrity()
    for name, value in wrong.items():
        *inner, last = name.split(".")
        setattr(getattr(kv, inner[0]) if inner else kv, last, value)
    with pytest.raises(AssertionError, match=told):
        kv.check_integrity()


@pytest.mark.parametrize(
    ("blocks", "told"), [([4, 4], "free twice"), ([2], "free and held"), ([0], "null block"), ([5], "never used")]
)
def test_a_block_that_is_given_back_and_should_not_be_is_found(blocks: list[int], told: str) -> None:
    """Three blocks are held, the fourth was; the others of eight never."""
    kv = Paged(NoParams(), KVMemory(9, 4, 100))
    one, other = Request(0, "0", 10, 20, 0), Request(1, "1", 4, 20, 0)
    for each in (one, other):
        kv.admit(each, MISS, each.prompt_len, 0)
    kv.free(other)
    kv.held_tokens = 10
    kv._fresh.take(1)
    kv._fresh.give(ids(blocks))
    kv._fresh.num_blocks += 1 - len(blocks)  # as many as there should be
    with pytest.raises(AssertionError, match=told):
        kv.check_free([block for table in kv.tables.values() for block in table])
