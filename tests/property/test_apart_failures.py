"""Replicas that crash, drain, are slow or added where prompts and answers are on different ones: both modes agree, no
request is lost or served twice, and no block is kept."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, OnNode, Slowdown
from servesim.features.failures.networks import SlowNet
from servesim.features.failures.part import Failing
from servesim.features.handoff.losses import CRASHED
from tests.property.test_apart import assert_both_agree
from tests.property.test_router_life import upgrades
from tests.support.apart import Apart, apart_worlds, handoff_of
from tests.support.examples import examples

TIMES = st.one_of(st.integers(0, 15_000), st.integers(0, 60_000), st.sampled_from([90_000, 200_000]))


@st.composite
def failing_worlds(draw: st.DrawFn) -> Apart:
    """Worlds apart with room for all, of which any replica may fail; each comes back."""
    world = draw(apart_worlds())
    replicas = st.integers(0, world.replicas - 1)
    downs = st.sampled_from([0, 5_000, 90_000])
    crashes = draw(st.lists(st.builds(Crash, replicas, TIMES, downs), max_size=4))
    drained = draw(st.lists(st.builds(Drain, replicas, TIMES), max_size=1))
    of = {drain.replica: draw(st.sampled_from([0, 4_000])) for drain in drained}  # another one of its pool starts
    adds = [Add(drain.at_ns, of[drain.replica], int(drain.replica >= world.sizes[0])) for drain in drained]
    slow = draw(st.lists(st.builds(lambda i, at: Slowdown(i, at, at + 50_000, 2.5), replicas, TIMES), max_size=1))
    places = st.sampled_from([{}, *({place: 0} for place in ("replica", "node", "pool"))])
    network = st.builds(
        lambda at, factor, where: SlowNet(at, at + 9_000, factor, **where), TIMES, st.sampled_from([1.5, 40.0]), places
    )
    failures = Failures(
        tuple(crashes),
        tuple(slow),
        tuple(drained),
        tuple(adds),
        detect_ns=draw(st.sampled_from([0, 3_000])),
        reroutes=draw(st.sampled_from([0, 1, 5])),
        migrations=draw(st.sampled_from([0, 1, 3])),
        backoff_ns=draw(st.sampled_from([0, 2_000])),
        nodes=tuple(
            draw(st.lists(st.builds(OnNode, st.just(0), st.builds(Crash, st.just(-1), TIMES, downs)), max_size=2))
        ),
        networks=tuple(draw(st.lists(network, max_size=2))),
        upgrades=tuple(draw(st.lists(upgrades(TIMES) | upgrades(TIMES, 1), max_size=2))),
    )
    return replace(world, num_blocks=4_000, decode_blocks=4_000, max_num_seqs=64, failures=failures, node_size=2)


@examples(30)
@given(failing_worlds())
def test_both_modes_agree(world: Apart) -> None:
    assert_both_agree(world)


@examples(30)
@given(failing_worlds())
def test_at_each_instant_arrived_is_left_and_in_flight_and_no_block_is_kept_in_the_end(world: Apart) -> None:
    cluster = world.cluster("reference", check=True)
    assert_conserved(cluster)
    told(cluster)


def assert_conserved(cluster: Cluster) -> None:
    """Run a cluster; assert at each instant that what arrived has left or is in flight, and that no replica is gone
    while it is needed, and in the end that no request, KV or block is kept."""
    handoff, failing = handoff_of(cluster), cluster.part(Failing)
    assert failing is not None
    cluster.start()
    at = -1
    while cluster.step():
        for passage in handoff._held.values():
            kept = cluster.replicas[passage.prefill].core.kv
            assert kept.slots(passage.leg) >= passage.leg.prompt_len
        if cluster.clock.peek() > at:
            at = cluster.now_ns
            assert cluster.num_arrived == cluster.num_left + in_flight(cluster)
            for replica in cluster.replicas:
                if replica.state == "gone":
                    assert not handoff.keeps(replica.index)
                    assert replica.core.num_unfinished == 0
    assert cluster.num_left == cluster.num_arrived
    assert not any((handoff.passages, handoff._held, failing._here, failing._pausing))
    for replica in cluster.replicas:
        usage = replica.core.kv.usage()
        assert usage.used == usage.internal == 0, f"replica {replica.index} keeps {usage}"
        assert not any((replica.core.keeping, replica.core.fetched))
    for request in [passage.request for passage in handoff.done]:
        if request.state is State.FINISHED:
            assert request.num_tokens == request._end_tokens
            assert request.first_token_ns <= request.last_token_ns <= request.finished_ns


def in_flight(cluster: Cluster) -> int:
    """Requests that wait in the router, pause, or are somewhere between the two sides."""
    failing, handoff = cluster.part(Failing), handoff_of(cluster)
    assert failing is not None
    straight = handoff.straight._there if handoff.straight is not None else {}
    there = {p.request for p in handoff.passages.values() if not p.lost} | {*failing._pausing, *straight}
    return len(there) + cluster.waiting.num_waiting


def told(cluster: Cluster) -> None:
    reasons = cluster.recorder.reasons.values()
    event(f"KV lost: {CRASHED in reasons}")
    done = [p.request for p in handoff_of(cluster).done]
    event(f"migrated: {any(request.num_migrations for request in done)}")
