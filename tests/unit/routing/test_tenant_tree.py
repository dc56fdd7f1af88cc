"""The approximate prefix tree: compared with one that knows every token, and evictions by hand."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from servesim.contracts.request import Request
from servesim.policies.routing._tenant_tree import TenantTree
from tests.support.routing import Prompts

RUNS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=4)


def tokens(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Tokens of a prompt; two runs of one content would be one run, so each id is told apart by its place."""
    return [(content, i) for content, length in runs for i in range(length)]


def distinct(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(content + 10 * place, length) for place, (content, length) in enumerate(runs)]


@given(st.lists(st.tuples(RUNS, st.integers(0, 2)), min_size=1, max_size=12))
def test_a_match_is_the_longest_prefix_of_anything_sent_and_tenants_are_those_it_was_sent_to(
    sent: list[tuple[list[tuple[int, int]], int]],
) -> None:
    tree, prompt = TenantTree(3), Prompts()
    known: list[tuple[list[tuple[int, int]], int]] = []
    for raw, tenant in sent:
        runs = distinct(raw)
        text = tokens(runs)
        shared = [common(text, other) for other, _ in known]
        request = prompt(*runs)
        found = tree.match(request)
        assert found.length == max(shared, default=0)
        if found.length:
            assert set(found.node.tenants) == {t for (_, t), n in zip(known, shared, strict=True) if n == found.length}
        tree.insert(request, tenant, found)
        known.append((text, tenant))
        for each in range(3):
            told = [text for text, t in known if t == each]
            assert tree.sizes[each] == len({tuple(text[:n]) for text in told for n in range(1, len(text) + 1)})


def test_a_node_keeps_the_content_of_its_request_and_not_the_request() -> None:
    tree, prompt = TenantTree(1), Prompts()
    request = prompt((1, 8))
    tree.insert(request, 0)
    node = tree.match(request).node
    assert request.content in gc.get_referents(node)
    assert not any(isinstance(each, Request) for each in gc.get_referents(node))


def common(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_node_belongs_to_the_tenant_that_created_it_and_so_do_both_halves_when_it_is_split() -> None:
    tree, prompt = TenantTree(2), Prompts()
    tree.insert(prompt((1, 10), (2, 10)), 1)
    tree.insert(prompt((1, 10), (3, 5)), 0)
    upper = tree.match(prompt((1, 10), (4, 1)))
    assert (upper.length, sorted(upper.node.tenants), tree.owner(upper.node)) == (10, [0, 1], 1)
    assert tree.owner(tree.match(prompt((1, 10), (3, 5))).node) == 0


def test_eviction_takes_a_tenants_least_recently_used_leaves_until_it_fits() -> None:
    tree, prompt = TenantTree(2), Prompts()
    tree.insert(prompt((1, 10), (2, 10)), 0)
    tree.insert(prompt((1, 10), (3, 5)), 0)
    tree.insert(prompt((9, 7)), 1)
    tree.evict(20)
    assert tree.sizes == {0: 15, 1: 7}  # the older leaf of 10 is gone
    assert tree.match(prompt((1, 10), (2, 10))).length == 10
    tree.evict(4)
    assert tree.sizes == {0: 0, 1: 0}
    assert tree.match(prompt((9, 7))).length == 0


def test_a_tenant_that_is_removed_answers_for_nothing() -> None:
    tree, prompt = TenantTree(2), Prompts()
    tree.insert(prompt((1, 10)), 1)
    tree.insert(prompt((1, 10), (2, 4)), 0)
    tree.remove(1)
    found = tree.match(prompt((1, 10)))
    assert (found.length, tree.owner(found.node)) == (10, 0)


def test_a_prompt_of_unknown_content_matches_nothing_and_is_not_entered() -> None:
    tree, prompt = TenantTree(1), Prompts()
    request = prompt((1, 10))
    request.content = None
    tree.insert(request, 0)
    assert tree.match(request).length == 0
    assert tree.sizes == {0: 0}


def test_a_tenant_that_was_never_added_holds_what_is_sent_to_it() -> None:
    tree, prompt = TenantTree(0), Prompts()
    tree.insert(prompt((1, 7)), 3)
    tree.insert(prompt((1, 7), (2, 5)), 3)
    assert tree.sizes == {3: 12}
