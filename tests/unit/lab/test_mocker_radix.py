"""The prefix cache of Dynamo's simulated SGLang: what sets it apart, by hand."""

from __future__ import annotations

from servesim.contracts import KVMemory
from servesim.contracts.request import Request, State
from servesim.policies.kv.prefix_radix import PrefixRadixParams
from servesim.workload.content import RunContent
from servesim_lab.dynamo.radix import MockerRadix, MockerSource, MockerTree

PAGE = 4


def content(*runs: tuple[int, int]) -> RunContent:
    return RunContent(0, list(runs))


def entered(tree: MockerTree, *runs: tuple[int, int]) -> None:
    tree.extend(tree.root, content(*runs), sum(length for _, length in runs))


def found(tree: MockerTree, *runs: tuple[int, int]) -> int:
    return tree.find(content(*runs), sum(length for _, length in runs))[0]


def test_of_the_oldest_leaf_the_last_pages_go_first() -> None:
    tree = MockerTree(PAGE)
    entered(tree, (1, 12))
    entered(tree, (2, 8))
    assert tree.trim(5) == 8
    assert (found(tree, (1, 12)), found(tree, (2, 8))) == (4, 8)
    assert tree.trim(8) == 8
    assert (found(tree, (1, 12)), found(tree, (2, 8))) == (0, 4)
    tree.check_integrity()


def test_a_match_that_ends_within_a_leaf_does_not_use_it() -> None:
    tree = MockerTree(PAGE)
    entered(tree, (1, 12))
    entered(tree, (2, 8))
    assert tree.match(content((1, 8), (3, 4)), 12).end == 8
    assert tree.trim(12) == 12
    assert (found(tree, (1, 12)), found(tree, (2, 8))) == (0, 8)
    tree.check_integrity()


def test_a_leaf_grows_in_place_unless_another_request_holds_it() -> None:
    tree = MockerTree(PAGE)
    entered(tree, (1, 8))
    leaf = tree.match(content((1, 8)), 8)
    tree.lock(leaf)
    assert tree.extend(leaf, content((1, 8), (2, 4)), 12) == (8, leaf)
    assert (leaf.end, tree.protected) == (12, 12)
    tree.lock(leaf)
    _, below = tree.extend(leaf, content((1, 8), (2, 4), (3, 4)), 16)
    assert (below.parent, below.start, leaf.end) == (leaf, 12, 12)
    tree.check_integrity()


def test_what_is_generated_can_be_found_while_it_is() -> None:
    """A prompt of 6 tokens and the third one generated: two pages are full, memory is there for the third."""
    kv = MockerRadix(PrefixRadixParams(page_size=PAGE), KVMemory(10, PAGE, 1000))
    request = Request(0, "a", 6, 20, 0, content=content((1, 6)))
    kv.admit(request, kv.lookup(request), 6, 0)
    request.state, request.num_computed_tokens = State.RUNNING, 6
    request.num_tokens = 7
    kv.publish(request, 6)
    assert kv.slots(request) == 8
    for known in (8, 9):
        assert kv.grow(request, 1)
        request.num_computed_tokens, request.num_tokens = known - 1, known
        kv.publish(request, known - 1)
    assert kv.slots(request) == 12
    assert kv.tree.protected == 8
    kv.free(request)
    assert (kv.tree.evictable, kv.usage().free) == (8, 40)


def test_a_preempted_request_leaves_what_was_entered() -> None:
    kv = MockerRadix(PrefixRadixParams(page_size=PAGE), KVMemory(10, PAGE, 1000))
    request = Request(0, "a", 6, 20, 0, content=content((1, 6)))
    kv.admit(request, kv.lookup(request), 6, 0)
    request.state, request.num_computed_tokens, request.num_tokens = State.RUNNING, 6, 7
    kv.publish(request, 6)
    request.state = State.PREEMPTED
    kv.free(request)
    assert (kv.tree.evictable, kv.usage().free) == (4, 40)


def test_a_prefill_worker_s_prompt_can_be_found_only_when_its_memory_is_freed() -> None:
    """Two full pages of a prompt of 9 tokens: its KV is computed, then pulled."""
    kv = MockerSource(PrefixRadixParams(page_size=PAGE), KVMemory(10, PAGE, 1000))
    first, second = (Request(row, "a", 9, 1, 0, content=content((1, 9))) for row in (0, 1))
    kv.admit(first, kv.lookup(first), 9, 0)
    first.state, first.num_computed_tokens, first.num_tokens = State.RUNNING, 9, 10
    kv.publish(first, 9)
    first.state = State.FINISHED
    assert kv.lookup(second).num_tokens == 0
    kv.free(first)
    assert kv.lookup(second).num_tokens == 8
    assert (kv.tree.evictable, kv.usage().free) == (8, 40)
    kv.check_integrity()
