"""What a prefix cache tells of the blocks it stores and removes is what it can find."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event as note
from hypothesis import given
from hypothesis.stateful import invariant, rule

from servesim.contracts import Request
from servesim.engine.cluster import Cluster
from tests.property.test_allocators_stateful import BLOCK, Allocators
from tests.property.test_fast_equals_reference import by_row
from tests.support.examples import examples
from tests.support.kv_index import BlockIndex
from tests.support.strategies import groups_of_samples, worlds
from tests.support.worlds import Watched, WatchedFast, World

SHARING = [
    "prefix-hash",
    "prefix-hash:free_order=back",
    "prefix-hash:hash_lookahead_tokens=2",
    "prefix-oracle",
    "prefix-radix",
    "prefix-radix:page_size=4",
    "prefix-radix:eviction_policy=lfu,page_size=2",
]


class Listening(Allocators):
    """An allocator under random use, with one that listens."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(self.kv.block_size, getattr(self.kv.params, "hash_lookahead_tokens", 0))
        self.kv.on_event = lambda event: self.index.on_event(0, 0, event)
        self.seen: dict[object, Request] = {}

    def _try(self, request: Request, chunk: int, lookahead: int, reserve: int) -> bool:
        self.seen[request.salt, tuple(request.content._runs)] = request  # type: ignore[union-attr]
        return super()._try(request, chunk, lookahead, reserve)

    def run(self, mask: int, k: int) -> None:
        """No rule here: where one listens, nothing grows in lockstep."""

    @rule()
    def reset(self) -> None:
        if hasattr(self.kv, "reset_prefix_cache"):
            self.kv.reset_prefix_cache()

    @invariant()
    def what_was_told_is_what_a_lookup_finds(self) -> None:
        for request in self.seen.values():
            again = Request(10_000, "again", request.num_tokens, 1, 0, salt=request.salt, content=request.content)
            assert self.index.cached_tokens(0, again) == self.kv.lookup(again).num_tokens


@pytest.mark.parametrize("spec", SHARING)
def test_what_a_cache_tells_is_what_it_can_find(spec: str) -> None:
    case = type("Machine", (Listening,), {"spec": spec}).TestCase  # type: ignore[attr-defined]
    case.settings = examples(40, stateful_step_count=40)
    case("runTest").runTest()
    assert BLOCK == 4


def listened(world: World, mode: str) -> tuple[Cluster, BlockIndex]:
    """A world run with one that listens to all replicas, and compares what it knows at each plan."""
    cluster = world.cluster(mode, check=True)
    kvs: list[Any] = [replica.core.kv for replica in cluster.replicas]
    index = BlockIndex(kvs[0].block_size, getattr(kvs[0].params, "hash_lookahead_tokens", 0))

    def compare(core: Watched | WatchedFast, replica: int) -> None:
        for request in core.scheduler.waiters():
            if request.content is not None:
                drop = kvs[replica].block_size if getattr(kvs[replica].params, "eagle_block_drop", 0) else 0
                found = max(index.cached_tokens(replica, request) - drop, 0)
                assert core.kv.lookup(request).num_tokens == found

    for i, replica in enumerate(cluster.replicas):
        replica.listen(index.on_event)
        core: Any = replica.core
        core.on_planned = lambda now, core=core, i=i: compare(core, i)
    cluster.run()
    return cluster, index


@pytest.mark.parametrize("kv", ["prefix-hash", "prefix-radix:page_size=4"])
def test_a_listener_to_several_replicas_hears_the_same_at_the_same_times_in_both_modes(kv: str) -> None:
    @examples(60)
    @given(worlds(kv=kv, samples=True))
    def holds(world: World) -> None:
        world.replicas = 2
        fast, told = listened(world, "fast")
        plain, plainly_told = listened(world, "reference")
        assert told.told == plainly_told.told
        assert by_row(fast.recorder) == by_row(plain.recorder) == by_row(world.run("fast").recorder)
        note(f"told: {bool(told.told)}")
        note(f"removed: {any(type(event).__name__ == 'BlockRemoved' for _, _, event in told.told)}")

    holds()


@examples(100)
@given(groups_of_samples())
def test_the_same_where_samples_are_forked_and_swapped_together(world: World) -> None:
    world.kv = "prefix-hash"
    fast, told = listened(world, "fast")
    _, plainly_told = listened(world, "reference")
    assert told.told == plainly_told.told
    kv: Any = fast.replicas[0].core.kv
    if world.trace.content is not None:
        assert sum(told.num_copies(0).values()) == sum(len(blocks) for blocks in kv.cached())
    note(f"swapped: {bool(fast.recorder.steps.column('bytes_moved').any())}")
