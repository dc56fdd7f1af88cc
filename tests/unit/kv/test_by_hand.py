"""Prefix caching by blocks, by hand: what is admitted over a hit, what is cached, when the cache may be forgotten."""

from __future__ import annotations

from collections.abc import Hashable

from servesim.contracts import MISS, KVMemory, Request, State
from servesim.policies.kv._prefix_hash_params import PrefixHashParams
from servesim.policies.kv.prefix_hash import PrefixHash

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
