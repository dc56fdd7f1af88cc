"""Events of prefix caches, by hand."""

from __future__ import annotations

import pytest

from servesim.contracts import MISS, KVMemory, Request, State, build_params, kv_allocators
from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from servesim.errors import UserError
from servesim.workload.content import RunContent
from tests.support.worlds import World, toy_trace


def cache(spec: str, blocks: int) -> tuple[object, list[KVEvent]]:
    cls, values = kv_allocators.resolve(spec)
    kv = cls(build_params(spec, cls.Params, dict(values)), KVMemory(blocks, 4, 100))
    told: list[KVEvent] = []
    kv.on_event = told.append
    return kv, told


def prompt(row: int, runs: list[tuple[int, int]], salt: str = "") -> Request:
    length = sum(n for _, n in runs)
    return Request(row, str(row), length, 1, row, salt=salt, content=RunContent(row, runs))


def serve(kv, request: Request, hit=MISS) -> None:  # type: ignore[no-untyped-def]
    """Admit a whole prompt, compute it and be done."""
    new = request.num_tokens - hit.num_tokens
    assert kv.can_admit(request, hit, new, 0, 0)
    kv.admit(request, hit, new, 0)
    request.state, request.num_computed_tokens = State.RUNNING, request.num_tokens
    kv.publish(request, request.num_tokens)
    kv.free(request)


@pytest.mark.parametrize("spec", ["prefix-hash", "prefix-oracle", "prefix-radix:page_size=4"])
def test_a_block_is_told_of_with_the_identity_of_all_before_it_and_what_it_follows(spec: str) -> None:
    kv, told = cache(spec, 100)
    first = prompt(0, [(1, 10)])
    key = first.content.prefix_key  # type: ignore[union-attr]
    serve(kv, first)
    assert told == [BlockStored((key(4), key(8)), None, 4, first.content, 0)]  # the third block is not full
    told.clear()
    second = prompt(1, [(1, 8), (2, 5)])
    serve(kv, second, kv.lookup(second))  # type: ignore[attr-defined]
    stored = BlockStored((second.content.prefix_key(12),), key(8), 4, second.content, 8)  # type: ignore[union-attr]
    assert told == [stored]


@pytest.mark.parametrize("spec", ["prefix-hash", "prefix-oracle"])
def test_blocks_are_told_of_as_removed_when_they_are_given_to_another_the_last_of_a_prompt_first(spec: str) -> None:
    kv, told = cache(spec, 5)  # four usable
    first, second = prompt(0, [(1, 12)]), prompt(1, [(2, 12)])
    a, b = first.content.prefix_key, second.content.prefix_key  # type: ignore[union-attr]
    serve(kv, first)
    told.clear()
    serve(kv, second)
    assert told == [BlockRemoved((a(12), a(8))), BlockStored((b(4), b(8), b(12)), None, 4, second.content, 0)]


def test_the_radix_tree_tells_of_the_pages_of_a_leaf_it_drops() -> None:
    kv, told = cache("prefix-radix:page_size=4", 4)
    first, second = prompt(0, [(1, 12)], "x"), prompt(1, [(2, 8)])
    a, b = first.content.prefix_key, second.content.prefix_key  # type: ignore[union-attr]
    serve(kv, first)
    keys = (("x", a(4)), ("x", a(8)), ("x", a(12)))
    assert told.pop() == BlockStored(keys, None, 4, first.content, 0)
    serve(kv, second)
    assert told == [BlockRemoved(keys), BlockStored((b(4), b(8)), None, 4, second.content, 0)]


def test_two_copies_of_a_block_are_told_of_one_by_one() -> None:
    kv, told = cache("prefix-hash", 100)
    both = [prompt(row, [(1, 5)]) for row in range(2)]
    for request in both:
        kv.admit(request, MISS, 5, 0)  # type: ignore[attr-defined]
    key = both[0].content.prefix_key(4)  # type: ignore[union-attr]
    assert told == [BlockStored((key,), None, 4, request.content, 0) for request in both]


def test_a_cache_that_is_reset_says_so() -> None:
    kv, told = cache("prefix-hash", 100)
    serve(kv, prompt(0, [(1, 9)]))
    told.clear()
    assert kv.reset_prefix_cache()  # type: ignore[attr-defined]
    assert told == [AllBlocksCleared()]


def test_a_prompt_of_unknown_content_is_not_told_of() -> None:
    for spec in ("prefix-hash", "prefix-radix"):
        kv, told = cache(spec, 5)
        for row in range(3):
            serve(kv, Request(row, str(row), 12, 1, 0))
        assert told == []


def test_a_cache_that_does_not_tell_cannot_be_listened_to() -> None:
    cluster = World(toy_trace([0], [8], [4], runs=[[(1, 8)]]), kv="hybrid").cluster()
    with pytest.raises(UserError, match="kv hybrid does not report which blocks it stores"):
        cluster.replicas[0].listen(lambda replica, ns, event: None)


def test_memory_without_a_prefix_cache_has_nothing_to_tell() -> None:
    cluster = World(toy_trace([0], [40], [4], runs=[[(1, 40)]])).cluster()
    told: list[KVEvent] = []
    cluster.replicas[0].listen(lambda replica, ns, event: told.append(event))
    cluster.run()
    assert told == []


@pytest.mark.parametrize("spec", ["prefix-hash", "prefix-oracle"])
def test_blocks_that_samples_bring_back_from_the_host_together_are_told_of_once(spec: str) -> None:
    cls, values = kv_allocators.resolve(spec)
    kv = cls(build_params(spec, cls.Params, dict(values)), KVMemory(10, 4, 100, host_blocks=10))
    told: list[KVEvent] = []
    kv.on_event = told.append
    request = prompt(0, [(1, 9)])
    sample = prompt(1, [(1, 9)])
    kv.admit(request, MISS, 9, 0)
    request.num_computed_tokens = sample.num_computed_tokens = 9
    request.num_tokens = sample.num_tokens = 10
    kv.fork(request, sample)
    kv.swap_out(request, [sample])
    key = request.content.prefix_key  # type: ignore[union-attr]
    stored = BlockStored((key(4), key(8)), None, 4, request.content, 0)
    assert told == [stored]
    assert kv.can_swap_in(request, 1, 0, [sample])
    kv.swap_in(request, 1, 0, [sample])
    kept = kv.cached()
    assert told == [stored, stored]
    assert sorted(len(blocks) for blocks in kept) == [2, 2]  # those in memory from before, and those brought back


@pytest.mark.parametrize("mode", ["reference", "fast"])
def test_several_listeners_all_hear_everything_in_the_order_in_which_they_came(mode: str) -> None:
    cluster = World(toy_trace([0], [40], [4], runs=[[(1, 40)]]), kv="prefix-hash").cluster(mode)
    told: list[tuple[int, KVEvent]] = []
    for each in range(3):
        cluster.replicas[0].listen(lambda replica, ns, event, each=each: told.append((each, event)))
    cluster.run()
    assert [each for each, _ in told] == [0, 1, 2] * (len(told) // 3)
    assert told
    assert all(event is told[i - i % 3][1] for i, (_, event) in enumerate(told))
