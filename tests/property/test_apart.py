"""Prompts and answers on different replicas: both modes agree, and no block is leaked or freed early."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import event, given

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.errors import PolicyError, UserError
from servesim.features.handoff.first import SglangParams, TrtllmParams
from servesim.features.handoff.losses import GONE
from servesim.features.handoff.vllm import VllmNixlParams
from tests.property.test_fast_equals_reference import assert_steps_agree, by_row
from tests.support.apart import Apart, apart_worlds, handoff_of
from tests.support.examples import examples
from tests.support.scaled import ScaledApart, scaled_apart_worlds


def passages(cluster: Cluster) -> list[tuple[Any, ...]]:
    """Where each request was, and when, by row."""
    found = [
        (
            *(p.request.row, p.prefill, p.decode, p.leg.scheduled_ns, p.leg.finished_ns, p.sent_ns),
            *(p.reserved_ns, p.received_ns, p.released_ns, p.num_bytes),
        )
        for p in handoff_of(cluster).done
    ]
    return sorted(found)


def run_apart(world: Apart, mode: str, check: bool = True) -> Cluster | str:
    """A run to its end, or why it has none: where memory is short requests may hold it and wait for each other."""
    cluster = world.cluster(mode, check)
    try:
        cluster.run()
    except (PolicyError, UserError) as error:
        return re.sub(r"at \d+ ns", "in the end", str(error))  # void events may come after the last that counts
    return cluster


@examples(30)
@given(apart_worlds())
def test_both_modes_agree(world: Apart) -> None:
    assert_both_agree(world)


def assert_both_agree(world: Apart) -> None:
    """A world run in both modes, checked and not: the same records, or the same reason why it has no end."""
    fast, plain, unwatched = run_apart(world, "fast"), run_apart(world, "reference"), run_apart(world, "fast", False)
    if isinstance(fast, str) or isinstance(plain, str) or isinstance(unwatched, str):
        event("stuck")
        assert fast == plain == unwatched
        return
    assert by_row(fast.recorder) == by_row(plain.recorder) == by_row(unwatched.recorder)
    assert fast.recorder.reasons == plain.recorder.reasons
    assert passages(fast) == passages(plain) == passages(unwatched)
    assert sorted(fast.recorder.deliveries.array().tolist()) == sorted(plain.recorder.deliveries.array().tolist())
    for a, b in zip(fast.recorder.itl(), plain.recorder.itl(), strict=True):
        assert a.tolist() == b.tolist()
    assert_steps_agree(fast.recorder, plain.recorder)


@examples(30)
@given(apart_worlds())
def test_no_block_is_kept_in_the_end_and_none_is_freed_before_it_was_read(world: Apart) -> None:
    cluster = world.cluster("reference", check=True)
    handoff = handoff_of(cluster)
    cluster.start()
    try:
        while cluster.step():
            for passage in handoff.passages.values():
                source = cluster.replicas[passage.prefill].core.kv
                if passage.prefilled:
                    assert source.slots(passage.leg) >= passage.leg.prompt_len, "freed early"
                if passage.released_ns >= 0:
                    assert source.slots(passage.leg) == 0, "still there"
                if passage.loading and passage.received_ns < 0 and passage.prefilled:
                    assert source.slots(passage.leg) >= passage.leg.prompt_len, "read while it is free"
                    assert cluster.replicas[passage.decode].core.kv.slots(passage.request) >= passage.request.prompt_len
    except (PolicyError, UserError):
        event("stuck")
        return
    if any(replica.core.num_unfinished for replica in cluster.replicas):
        event("stuck")
        return
    assert not handoff.passages
    assert not handoff._held
    for replica in cluster.replicas:
        usage = replica.core.kv.usage()
        assert usage.used == usage.internal == 0, f"replica {replica.index} keeps {usage}"
    event(f"gone: {GONE in cluster.recorder.reasons.values()}")
    event(f"preempted: {bool(cluster.recorder.requests.column('num_preemptions').any())}")
    event(f"given up: {bool((cluster.recorder.requests.column('state') == State.ABORTED).any())}")


@examples(20)
@given(scaled_apart_worlds())
def test_both_modes_agree_where_replicas_of_both_sides_come_and_go(world: ScaledApart) -> None:
    assert_both_agree(world)


@examples(20)
@given(scaled_apart_worlds())
def test_no_replica_goes_before_its_kv_was_read_and_each_request_is_in_one_place(world: ScaledApart) -> None:
    cluster = world.cluster("reference", check=True)
    handoff = handoff_of(cluster)
    cluster.start()
    try:
        while cluster.step():
            on_the_way = sum(passage.request.state < State.FINISHED for passage in handoff.passages.values())
            assert cluster.num_arrived == cluster.num_left + cluster.waiting.num_waiting + on_the_way
            for replica in cluster.replicas:
                if replica.state == "gone":
                    assert not replica.core.keeping, "gone with KV that was not read"
                    assert replica.core.num_unfinished == 0
    except (PolicyError, UserError):
        event("stuck")
        return
    if any(replica.core.num_unfinished for replica in cluster.replicas) or cluster.num_waiting:
        event("stuck")
        return
    assert cluster.num_arrived == cluster.num_left
    for replica in cluster.replicas:
        usage = replica.core.kv.usage()
        assert usage.used == usage.internal == 0, f"replica {replica.index} keeps {usage}"
    states = {(cluster.replicas[index].role, state) for _, index, state in cluster.fleet.history}
    event(f"prefill went: {('prefill', 'gone') in states}, decode went: {('decode', 'gone') in states}")


@examples(15)
@given(apart_worlds())
def test_stages_follow_each_other_and_the_first_token_is_seen_at_the_decode_side(world: Apart) -> None:
    cluster = run_apart(world, "fast")
    if isinstance(cluster, str):
        return
    for p in handoff_of(cluster).done:
        if p.request.state is not State.FINISHED:
            continue
        assert p.request.arrival_ns <= p.leg.scheduled_ns < p.leg.finished_ns
        if isinstance(world.protocol, SglangParams):
            assert p.request.arrival_ns <= p.sent_ns <= p.reserved_ns <= p.leg.scheduled_ns
        else:
            assert p.leg.finished_ns <= p.sent_ns <= p.reserved_ns
        assert p.request.first_token_ns > p.reserved_ns or isinstance(world.protocol, TrtllmParams)
        if p.received_ns >= 0:
            begun = max(p.reserved_ns, p.leg.finished_ns)
            assert p.received_ns >= begun + world.start_ns + -(-p.num_bytes * 10**9 // world.bytes_per_s)
            assert p.request.first_token_ns >= p.received_ns == p.released_ns
            if isinstance(world.protocol, VllmNixlParams):
                assert p.request.first_token_ns > p.received_ns, "of a step there"
