"""SGLang's radix cache by hand: what enters the tree when, who holds it, and what is evicted first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from servesim.contracts import KVMemory, Request, State, build_params, kv_allocators
from servesim.policies.kv._radix import RadixTree, tail_optimized
from tests.support.worlds import World, toy_trace


class Word:
    """Content whose tokens are letters."""

    def __init__(self, text: str) -> None:
        self.text = text

    def prefix_key(self, stop: int) -> Hashable:
        assert stop <= len(self.text)
        return self.text[:stop]


def enter(tree: RadixTree, *words: str, **options: Any) -> None:
    for word in words:
        tree.insert(Word(word), len(word), **options)
        tree.check_integrity()


def shape(tree: RadixTree) -> list[str]:
    """The runs of the tree in capitals, behind those above them, in the order of the alphabet."""
    runs = [(node.content.text, node.start, node.end) for node in tree.nodes()]  # type: ignore[attr-defined]
    return sorted(text[:start].lower() + text[start:end] for text, start, end in runs)


def gone(tree: RadixTree, tokens: int) -> list[str]:
    """What is evicted, in order."""
    dropped = [node.content.text[node.start : node.end] for node in tree.evict(tokens)]  # type: ignore[attr-defined]
    tree.check_integrity()
    return dropped


def test_runs_part_where_their_tokens_do() -> None:
    tree = RadixTree()
    enter(tree, "ABCDEF", "ABXY", "ABCDZ")
    assert shape(tree) == ["AB", "abCD", "abXY", "abcdEF", "abcdZ"]
    assert tree.total == tree.evictable == 9
    length, node = tree.find(Word("ABCDEQ"), 6)
    assert (length, node.end) == (5, 6)
    assert tree.match(Word("ABCDEQ"), 6).end == 5
    assert shape(tree) == ["AB", "abCD", "abXY", "abcdE", "abcdZ", "abcdeF"]
    assert tree.total == 9


def test_pages_are_matched_whole() -> None:
    tree = RadixTree(page_size=2)
    enter(tree, "ABCDEFG", "ABCXEF")
    assert shape(tree) == ["AB", "abCDEF", "abCXEF"]
    assert tree.find(Word("ABCDEX"), 6)[0] == 4
    assert tree.find(Word("ABCDEF"), 5)[0] == 4
    assert tree.find(Word("AX"), 2)[0] == 0


def test_salts_never_share() -> None:
    tree = RadixTree()
    enter(tree, "ABC", salt="x")
    enter(tree, "ABC")
    assert tree.total == 6
    assert tree.find(Word("ABC"), 3, "x")[0] == 3
    assert tree.find(Word("ABC"), 3, "y")[0] == 0


def test_a_held_leaf_keeps_all_above_it() -> None:
    tree = RadixTree()
    enter(tree, "ABC", "ABD", "XY")
    held = tree.match(Word("ABD"), 3)
    tree.lock(held)
    assert (tree.evictable, tree.protected) == (3, 3)
    assert gone(tree, 100) == ["C", "XY"]
    tree.unlock(held)
    assert gone(tree, 100) == ["D", "AB"]
    assert tree.total == 0


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", ["B", "C", "D", "A"]),
        ("lfu", ["B", "D", "C", "A"]),
        ("slru", ["B", "D", "C", "A"]),
        ("priority", ["C", "D", "A", "B"]),
    ],
)
def test_eviction_policies(policy: str, order: list[str]) -> None:
    """A, B, C and D are entered, C and A again; then D and A are looked up. B matters most, then A."""
    tree = RadixTree(eviction_policy=policy)
    enter(tree, "A", priority=1)
    enter(tree, "B", priority=2)
    enter(tree, "C", "D", "C", "A")
    for word in ("D", "A"):
        tree.match(Word(word), 1)
    assert gone(tree, 4) == order


def test_tail_optimized_lru_first_takes_what_the_next_prompt_may_compute_again() -> None:
    """The next prompt of each conversation adds 2 tokens and may compute 5: of one of 9 tokens 6 must stay, of one of 3
    none. What is spare goes by time of use, XYZ and then GHI although that was used last; then the rest does."""
    tree = RadixTree(eviction_policy=tail_optimized(threshold=5, next_prompt_estimate=2))
    enter(tree, "PQRST")  # 2 must stay: one piece from its start, kept
    enter(tree, "XYZ")
    enter(tree, "ABC", "ABCDEF", "ABCDEFGHI")
    assert gone(tree, 1) == ["XYZ"]
    assert gone(tree, 1) == ["GHI"]
    assert gone(tree, 1) == ["PQRST"], "of the long one no more is spare, although DEF is its tail now"
    assert gone(tree, 9) == ["DEF", "ABC"]


def test_tail_optimized_lru_without_a_budget_is_lru() -> None:
    tree = RadixTree(eviction_policy="tlru")
    enter(tree, "AB", "XY", "ABCD")
    assert gone(tree, 9) == ["XY", "CD", "AB"]


def test_what_is_split_off_may_be_spare() -> None:
    tree = RadixTree(eviction_policy=tail_optimized(threshold=3, next_prompt_estimate=1))
    enter(tree, "ABCDEF", "XY")  # 4 of ABCDEF must stay, none of XY
    tree.match(Word("ABCD"), 4)
    assert gone(tree, 2) == ["XY"]
    assert gone(tree, 1) == ["EF"]
    assert gone(tree, 1) == ["ABCD"]


def test_leaves_go_whole_and_their_parent_in_the_same_sweep() -> None:
    tree = RadixTree()
    enter(tree, "ABCDEF", "ABXYZ")
    assert gone(tree, 1) == ["CDEF"]
    assert gone(tree, 4) == ["XYZ", "AB"]


def test_a_request_that_enters_piece_by_piece_hits_each_piece_once() -> None:
    tree = RadixTree(eviction_policy="lfu")
    for i, word in enumerate(("AB", "ABCD", "ABCDEF")):
        tree.insert(Word(word), len(word), inserted_len=2 * i)
    assert [node.hits for node in tree.nodes()] == [1, 1, 1]
    tree.insert(Word("ABCD"), 4)
    assert {(node.end, node.hits) for node in tree.nodes()} == {(2, 2), (4, 2), (6, 1)}


def test_a_served_request_has_hit_its_prompt_and_its_output_once() -> None:
    kv = radix(50, eviction_policy="slru")
    request = start(kv, 0, "ABCDEFG", 4)
    decode(kv, request, 2)
    request.num_tokens += 1
    stop(kv, request)
    assert {(node.end, node.hits) for node in kv.tree.nodes()} == {(4, 1), (6, 1)}


def test_only_what_is_missing_is_evicted() -> None:
    """Of 201 slots 150 are cached, in ten pieces of 15; 51 are free and 60 wanted: one piece goes."""
    kv = radix(201)
    for i in range(10):
        kv.tree.insert(Word(f"{i}" * 15), 15)
    kv._pool -= 150
    assert kv._pool == 51
    start(kv, 0, "x" * 60, 59, new=60)
    assert kv.tree.total == 135


def radix(slots: int, **params: Any) -> Any:
    cls, _ = kv_allocators.resolve("prefix-radix")
    return cls(build_params("prefix-radix", cls.Params, params), KVMemory(slots, 1, 1000))


def start(kv: Any, row: int, text: str, prompt: int, new: int | None = None) -> Request:
    """Admit a request whose prompt is the first letters of a text, the rest its output."""
    request = Request(row, str(row), prompt, len(text) - prompt, 0, content=Word(text))
    hit = kv.lookup(request)
    new = prompt - hit.num_tokens if new is None else new
    assert kv.can_admit(request, hit, new, prompt, 0)
    kv.admit(request, hit, new, 0)
    request.state, request.num_computed_tokens = State.RUNNING, hit.num_tokens + new
    kv.held_tokens += request.num_computed_tokens
    kv.check_integrity()
    return request


def decode(kv: Any, request: Request, tokens: int) -> None:
    for _ in range(tokens):
        kv.publish(request, request.num_computed_tokens)
        request.num_tokens += 1
        assert kv.grow(request, 1)
        request.num_computed_tokens += 1
        kv.held_tokens += 1
        kv.check_integrity()


def stop(kv: Any, request: Request, state: State = State.RUNNING) -> None:
    kv.held_tokens -= request.num_computed_tokens
    request.state = state
    kv.free(request)
    kv.check_integrity()


def test_a_prompt_enters_after_its_prefill_and_its_output_at_the_end() -> None:
    kv = radix(100)
    request = start(kv, 0, "ABCDEFG", 4)
    assert shape(kv.tree) == []
    decode(kv, request, 2)
    assert shape(kv.tree) == ["ABCD"]
    assert (kv.tree.protected, kv.usage()) == (4, (6, 0, 0, 94))
    request.num_tokens += 1
    stop(kv, request)
    assert shape(kv.tree) == ["ABCD", "abcdEF"], "the last token never had KV"
    assert kv.usage() == (0, 0, 0, 100)


def test_one_that_is_retracted_leaves_its_prompt_alone() -> None:
    kv = radix(100)
    request = start(kv, 0, "ABCDEFG", 4)
    decode(kv, request, 3)
    stop(kv, request, State.PREEMPTED)
    assert shape(kv.tree) == ["ABCD"]
    assert kv.usage().free == 100


def test_chunks_enter_one_by_one() -> None:
    kv = radix(100)
    request = start(kv, 0, "ABCDEFGH", 6, new=2)
    assert kv.grow(request, 4)
    assert shape(kv.tree) == ["AB"]
    request.num_computed_tokens += 4
    kv.held_tokens += 4
    kv.publish(request, 6)
    assert shape(kv.tree) == ["AB", "abCDEF"]
    assert {node.hits for node in kv.tree.nodes()} == {1}, "the last chunk is a hit, those before it are not"


def test_the_same_prompt_twice_at_once_is_kept_once() -> None:
    kv = radix(100)
    first, second = start(kv, 0, "ABCDE", 4), start(kv, 1, "ABCDX", 4)
    assert kv.usage() == (8, 0, 0, 92), "neither is in the tree yet"
    decode(kv, first, 1)
    decode(kv, second, 1)
    assert kv.usage() == (6, 0, 0, 94), "the second has freed its copy"
    assert start(kv, 2, "ABCDEF", 5).num_computed_tokens == 5


def test_a_finished_prompt_is_found_but_for_its_last_token() -> None:
    kv = radix(100)
    stop(kv, start(kv, 0, "ABCDE", 4))
    again = Request(1, "1", 4, 1, 0, content=Word("ABCDE"))
    assert kv.lookup(again).num_tokens == 3
    assert kv.idle_tokens(kv.lookup(again)) == 3


def test_what_is_held_is_not_idle() -> None:
    kv = radix(100)
    first = start(kv, 0, "ABCDE", 4)
    decode(kv, first, 1)
    other = Request(1, "1", 6, 1, 0, content=Word("ABCDXYZ"))
    assert kv.idle_tokens(kv.lookup(other)) == 0
    stop(kv, first)
    assert kv.idle_tokens(kv.lookup(other)) == 4


def test_an_adopted_prefix_counts_against_free_memory() -> None:
    """Ten slots, eight of them cached: all are free, but the hit of seven leaves no more than three."""
    kv = radix(10)
    request = start(kv, 0, "ABCDEFGHI", 8)
    request.num_tokens += 1
    stop(kv, request)
    assert kv.usage().free == 10
    again = Request(1, "1", 12, 1, 0, content=Word("ABCDEFGHIJKLM"))
    hit = kv.lookup(again)
    assert hit.num_tokens == 8
    assert kv.can_admit(again, hit, 2, 0, 0)
    assert not kv.can_admit(again, hit, 3, 0, 0)
    assert not kv.can_admit(again, hit, 2, 0, 1)


def test_content_nobody_knows_is_found_by_its_own_request_alone() -> None:
    """Tight memory: some row is preempted and finds its prompt again."""
    trace = toy_trace([0, 0, 0], [20, 20, 20], [40, 40, 40])
    rows = World(trace, "prefix-radix", 7, 16, max_model_len=100).run(check=True).recorder.requests.array()
    assert rows[:, 12].tolist() == [0, 0, 0], "no hit when first admitted"
    preempted, recomputed = int(rows[:, 13].sum()), int(rows[:, 14].sum())
    plain = World(trace, "paged", 8, 16, max_model_len=100).run().recorder.requests.array()
    assert preempted
    assert recomputed < int(plain[:, 14].sum())


@pytest.mark.parametrize("page_size", [1, 16])
def test_radix_and_hash_agree_where_memory_is_plenty(page_size: int) -> None:
    """Block-aligned prompts one after the other: both find what the same trie holds."""
    runs = [[(1, 64), (10, 32)], [(1, 64), (11, 16)], [(1, 48), (12, 48)], [(1, 64), (10, 32), (13, 16)]]
    lengths = [sum(n for _, n in r) for r in runs]
    trace = toy_trace([0, 10**9, 2 * 10**9, 3 * 10**9], lengths, [1] * 4, runs=runs)
    found = {}
    for kv in ("prefix-hash", f"prefix-radix:page_size={page_size}"):
        found[kv] = World(trace, kv, 1000).run(check=True).recorder.requests.array()[:, 12].tolist()
    assert list(found.values()) == [[0, 64, 48, 96]] * 2
