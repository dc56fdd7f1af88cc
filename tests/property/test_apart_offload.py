"""Prompts and answers apart with host memory behind one side or both: fast mode leaves what plain stepping leaves, and
at the end nothing is held, kept at a source, or being copied."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from servesim.features.handoff.vllm import VllmNixlParams
from tests.property.test_apart import passages
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.property.test_offload import CHUNKS, HIERARCHIES, HOSTS, Watched, counts
from tests.support.apart import Apart, apart_worlds, handoff_of
from tests.support.examples import examples
from tests.support.offloaded import Chunks, Hierarchy, Host, behind, memories


class Behind(NamedTuple):
    """Which roles have host memory, and whether the decode side looks there first."""

    world: Apart
    hosts: dict[str, Host | Chunks | Hierarchy]
    first: bool


@st.composite
def worlds(draw: st.DrawFn) -> Behind:
    """vLLM's connectors on either side, SGLang's on the prefill side."""
    world = draw(apart_worlds(("vllm", "vllm", "sglang"), alike=True))
    if world.scheduler.startswith("sglang"):
        return Behind(world, {"prefill": draw(HIERARCHIES)}, False)
    hosts = st.one_of(HOSTS, CHUNKS)
    roles = draw(st.sampled_from([("prefill",), ("decode",), ("prefill", "decode")]))
    first = isinstance(world.protocol, VllmNixlParams) and draw(st.booleans())
    return Behind(world, {role: draw(hosts) for role in roles}, first)


def run(found: Behind, mode: str, check: bool = True) -> Cluster | str:
    """A run to its end, or why it has none: where memory is short requests may hold it and wait for each other."""
    cluster = found.world.cluster(mode, check)
    for role, host in found.hosts.items():
        behind(cluster, role, host, found.first and role == "decode")
    watched = Watched(cluster, found.hosts)
    try:
        cluster.run()
    except (PolicyError, UserError) as error:
        return str(error)
    if any(replica.core.num_unfinished for replica in cluster.replicas):
        return "stuck"
    event(f"stored: {watched.stored > 0}")
    assert not handoff_of(cluster).passages
    assert not handoff_of(cluster)._held
    for replica in cluster.replicas:
        core = replica.core
        assert not core.keeping, "memory is kept at the end"
        assert not core.fetched, "memory is held for KV at the end"
        usage = core.kv.usage()
        assert usage.used == usage.internal == 0, f"memory is held at the end: {usage}"
    for memory in memories(cluster):
        memory.check_integrity()
        assert all(not request.being_read for request in memory.keys.requests()), "a copy never ended"
    return cluster


@examples(60)
@given(worlds())
def test_both_modes_agree_and_no_block_is_kept_in_the_end(found: Behind) -> None:
    fast, plain, unwatched = run(found, "fast"), run(found, "reference"), run(found, "fast", False)
    if isinstance(fast, str) or isinstance(plain, str) or isinstance(unwatched, str):
        event("stuck")
        assert fast == plain == unwatched
        return
    assert by_row(fast.recorder) == by_row(plain.recorder) == by_row(unwatched.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert passages(fast) == passages(plain) == passages(unwatched)
    assert counts(fast) == counts(plain) == counts(unwatched)
    assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
    assert_steps_agree(fast.recorder, plain.recorder)
    event(f"loaded: {any(each.load_ns for each in counts(fast))}")
    event(f"loaded again: {any(each.again_tokens for each in counts(fast))}")
    event(f"not sent: {any(p.released_ns >= 0 > p.received_ns for p in handoff_of(fast).done)}")


@examples(30)
@given(worlds())
def test_no_block_is_freed_before_it_was_pulled_and_copied(found: Behind) -> None:
    cluster = found.world.cluster("reference", check=True)
    for role, host in found.hosts.items():
        behind(cluster, role, host, found.first and role == "decode")
    handoff = handoff_of(cluster)
    cluster.start()
    try:
        while cluster.step():
            for passage in handoff.passages.values():
                source = cluster.replicas[passage.prefill].core.kv
                if passage.prefilled or (passage.leg.being_read and passage.leg in handoff._held):
                    assert source.slots(passage.leg) >= passage.leg.prompt_len, "freed early"
                if passage.released_ns >= 0 and not passage.leg.being_read:
                    assert source.slots(passage.leg) == 0, "still there"
    except (PolicyError, UserError):
        event("stuck")
