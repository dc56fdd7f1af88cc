"""KV in host memory: fast mode leaves what plain stepping leaves, and at the end nothing is held or being copied."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts.request import Request, State
from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from servesim.features.offload.lmcache import LMCache
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.examples import examples
from tests.support.offloaded import Chunks, Hierarchy, Host, memories, offloaded
from tests.support.strategies import drafting_worlds, lockstep_worlds, social_worlds, worlds
from tests.support.worlds import World, watch

CHUNKS = st.builds(
    Chunks,
    blocks=st.sampled_from([1, 3, 8, 40, 400]),
    disk_blocks=st.sampled_from([0, 0, 2, 20, 400]),
    factor=st.sampled_from([1, 2, 3]),
    ns_per_block=st.sampled_from([1, 300, 5_000, 200_000]),
    disk_ns_per_block=st.sampled_from([1_000, 50_000]),
    save_decode=st.booleans(),
    least=st.sampled_from([0, 0, 40]),
)
HIERARCHIES = st.builds(
    Hierarchy,
    blocks=st.sampled_from([1, 3, 8, 40, 400]),
    factor=st.sampled_from([1, 2, 4]),
    ns_per_block=st.sampled_from([1, 300, 5_000, 200_000]),
    layers=st.sampled_from([1, 3, 80]),
    hits=st.sampled_from([1, 1, 2]),
)
HOSTS = st.builds(
    Host,
    blocks=st.sampled_from([1, 3, 8, 40, 400]),
    policy=st.sampled_from(["lru", "arc"]),
    factor=st.sampled_from([1, 1, 2, 3]),
    ns_per_block=st.sampled_from([1, 300, 5_000, 200_000]),
    start_ns=st.sampled_from([0, 0, 2_000]),
    told_at_end=st.booleans(),
)


class Watched:
    """Whether memory that is being copied from stays as it is."""

    def __init__(self, cluster: Cluster, roles: Collection[str] = ("both",)) -> None:
        self.stored = 0
        places = [replica for replica in cluster.replicas if replica.role in roles]
        for replica, offload in zip(places, memories(cluster), strict=True):
            self.look_after(replica, offload)

    def look_after(self, replica: Any, offload: Any) -> None:
        if isinstance(offload, LMCache):
            return
        copied, ran = offload._copied, offload.ran

        def watched(request: Request, event: object) -> None:
            self.stored += 1
            assert request.being_read > 0
            if request.state >= State.FINISHED and request in replica.core.keeping:
                assert replica.core.kv.slots(request) > 0, "memory was freed while it was copied"
            copied(request, event)

        def watched_run(requests: Any, begin_ns: int, end_ns: int) -> int:
            step = replica.core.in_flight[-1]
            assert step.start_ns >= replica.core.not_before_ns, "a step begins while memory it may write to is copied"
            return int(ran(requests, begin_ns, end_ns))

        offload._copied, offload.ran = watched, watched_run


def run(
    world: World, mode: str, host: Host | Chunks | Hierarchy, check: bool = True
) -> tuple[Cluster, dict[Any, Any]] | str:
    """A run to its end and what was seen in it, or why it has no end: with too little memory requests may hold it and
    wait for each other."""
    cluster = offloaded(world, mode, host, check=check)
    seen = watch(cluster) if check else {}
    watched = Watched(cluster)
    try:
        cluster.run()
    except (PolicyError, UserError) as error:
        return str(error)
    event(f"stored: {watched.stored > 0}")
    for replica, offload in zip(cluster.replicas, memories(cluster), strict=True):
        core = replica.core
        assert not core.keeping, "memory is kept at the end"
        assert not core.fetched, "memory is held for KV at the end"
        usage = core.kv.usage()
        assert usage.used == usage.internal == 0, f"memory is held at the end: {usage}"
        offload.check_integrity()
        assert all(not request.being_read for request in offload.keys.requests()), "a copy never ended"
    return cluster, seen


def counts(cluster: Cluster) -> list[Any]:
    return [offload.counts for offload in memories(cluster)]


def agree(world: World, host: Host | Chunks | Hierarchy) -> None:
    if world.kv.startswith("hybrid"):
        world.kv = "prefix-hash"  # which can wait for KV
    one, other = run(world, "fast", host), run(world, "reference", host)
    if isinstance(one, str) or isinstance(other, str):
        event("stuck")
        assert one == other
        return
    (fast, snapshots), (plain, expected) = one, other
    unwatched = run(world, "fast", host, check=False)[0]
    assert isinstance(unwatched, Cluster)
    assert by_row(fast.recorder) == by_row(plain.recorder) == by_row(unwatched.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert counts(fast) == counts(plain) == counts(unwatched)
    for a, b in zip(fast.recorder.itl(), plain.recorder.itl(), strict=True):
        assert a.tolist() == b.tolist()
    assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
    for cluster in (fast, unwatched):
        assert_steps_agree(cluster.recorder, plain.recorder)
    for key, snapshot in snapshots.items():
        assert snapshot == expected[key], f"replica, time, step {key}"
    event(f"loaded: {any(each.load_ns for each in counts(fast))}")
    event(f"preempted: {any(each.again_tokens for each in counts(fast))}")
    event(f"refused: {any(each.refused for each in counts(fast))}")
    event(f"deferred: {any(each.deferred for each in counts(fast))}")
    event(f"stalled: {any(replica.core.stalled_ns for replica in fast.replicas)}")


@examples(40)
@given(worlds(samples=True), HOSTS)
def test_fast_mode_equals_plain_stepping_with_host_memory(world: World, host: Host) -> None:
    agree(world, host)


@examples(20)
@given(lockstep_worlds(), HOSTS)
def test_the_same_where_requests_decode_together(world: World, host: Host) -> None:
    agree(world, host)


@examples(20)
@given(social_worlds(samples=True), HOSTS)
def test_the_same_where_clients_give_up(world: World, host: Host) -> None:
    agree(world, host)


@examples(15)
@given(drafting_worlds(), HOSTS)
def test_the_same_where_drafts_are_verified(world: World, host: Host) -> None:
    agree(world, host)


@examples(40)
@given(st.one_of(worlds(kv="paged"), worlds(kv="prefix-hash", samples=True)), CHUNKS)
def test_fast_mode_equals_plain_stepping_with_lmcache(world: World, host: Chunks) -> None:
    agree(world, host)


@examples(15)
@given(social_worlds(samples=True), CHUNKS)
def test_the_same_with_lmcache_where_clients_give_up(world: World, host: Chunks) -> None:
    agree(world, host)


@examples(15)
@given(drafting_worlds(), CHUNKS)
def test_the_same_with_lmcache_where_drafts_are_verified(world: World, host: Chunks) -> None:
    agree(world, host)


@examples(40)
@given(
    st.sampled_from([1, 4, 16]).flatmap(lambda page: worlds("sglang", f"prefix-radix:page_size={page}")), HIERARCHIES
)
def test_fast_mode_equals_plain_stepping_with_hicache(world: World, host: Hierarchy) -> None:
    agree(world, host)


@examples(15)
@given(social_worlds("sglang", "prefix-radix:page_size=4"), HIERARCHIES)
def test_the_same_with_hicache_where_clients_give_up(world: World, host: Hierarchy) -> None:
    agree(world, host)
