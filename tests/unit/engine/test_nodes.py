"""Nodes that fail with all their replicas, by hand: a step takes 1,000 ns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, OnNode, Slowdown
from servesim.features.failures.nodes import Outage, Stay, placed
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.examples import examples
from tests.support.worlds import ToyCost, World, toy_trace

pytestmark = pytest.mark.feature("failures")
MODES = pytest.mark.parametrize("mode", ["fast", "reference"])


def of(*gpus: int) -> list[Stay]:
    return [Stay(each) for each in gpus]


def test_replicas_fill_nodes_in_order_and_what_does_not_fit_goes_to_the_next() -> None:
    assert placed(8, of(4, 4, 4)) == [range(1), range(1), range(1, 2)]
    assert placed(8, of(4, 8, 4, 2)) == [range(1), range(1, 2), range(1), range(2, 3)]


def test_a_replica_larger_than_a_node_begins_at_an_empty_one_and_leaves_the_rest_of_its_last() -> None:
    assert placed(8, of(2, 12, 4, 6)) == [range(1), range(1, 3), range(1), range(3, 4)]
    assert placed(8, of(12, 4, 16)) == [range(2), range(1, 2), range(2, 4)]


def test_what_is_gone_makes_room_and_a_node_that_is_down_takes_nothing() -> None:
    stays = [Stay(1, 0, 50), Stay(1), Stay(1, 49), Stay(1, 50)]
    assert placed(2, stays) == [range(1), range(1), range(1, 2), range(1)]
    assert placed(2, stays, [Outage(0, 50, 60)])[3] == range(1, 2)
    assert placed(2, stays, [Outage(0, 40, 50)])[3] == range(1)
    assert placed(2, stays, [Outage(0, 0, None), Outage(1, 50, None)])[3] == range(2, 3)


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(0, 9), st.none() | st.integers(0, 9))),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 30)), max_size=2),
)
def test_no_node_ever_has_more_than_its_gpus_and_none_that_is_down_gets_any(
    drawn: list[tuple[int, int, int | None]], down: list[tuple[int, int, int]]
) -> None:
    since = [*accumulate(gap for _, gap, _ in drawn)]
    stays = [
        Stay(gpus, begin, None if stay is None else begin + stay)
        for (gpus, _, stay), begin in zip(drawn, since, strict=True)
    ]
    outages = [Outage(node, begin, begin + ns) for node, begin, ns in down]
    found = placed(4, stays, outages)
    for (gpus, begin, _), nodes in zip(stays, found, strict=True):
        assert len(nodes) == -(-gpus // 4)
        assert not {*nodes} & {outage.node for outage in outages if outage.since_ns <= begin < (outage.until_ns or 0)}
        used = Counter[int]()
        for other, theirs in zip(stays, found, strict=True):
            if other.since_ns <= begin and (other.until_ns is None or other.until_ns > begin):
                for i, node in enumerate(theirs):
                    used[node] += min(other.gpus - 4 * i, 4)
        assert max(used.values(), default=0) <= 4


def four(failures: Failures, **more: Any) -> World:
    """Four replicas on two nodes, each with a request of three tokens."""
    world = World(
        toy_trace([0] * 4, [10] * 4, [3] * 4),
        replicas=4,
        router="round-robin",
        cost=ToyCost(fixed=1000, token=0, context=0),
        node_size=2,
        failures=failures._replace(backoff_ns=500, jitter=0.0),
    )
    return replace(world, **more)


def rows(cluster: Cluster) -> dict[int, dict[str, int]]:
    found = cluster.recorder.requests.array().tolist()
    return {row[0]: dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(found)}


@MODES
def test_a_node_takes_exactly_the_requests_of_its_replicas_with_it(mode: str) -> None:
    found = rows(four(Failures(nodes=(OnNode(0, Crash(-1, 700, 9_000)),))).run(mode))
    assert [found[row]["replica"] for row in range(4)] == [2, 3, 2, 3]
    assert [found[row]["first_token_ns"] for row in range(4)] == [3_000, 3_000, 1_000, 1_000], "at 1,200 in a next step"
    late = rows(four(Failures(nodes=(OnNode(1, Crash(-1, 1_700, -1)),))).run(mode))
    assert [late[row]["state"] for row in range(4)] == [State.FINISHED] * 2 + [State.ABORTED] * 2
    assert [late[row]["output_len"] for row in range(4)] == [3, 3, 1, 1]


@MODES
def test_all_replicas_of_a_node_are_down_before_any_request_goes_on_elsewhere(mode: str) -> None:
    # the request of replica 0 has a token and migrates at once: never to replica 1, which is down at that instant too
    migrating = four(Failures(nodes=(OnNode(0, Crash(-1, 1_700, 50_000)),), migrations=1, detect_ns=0))
    cluster = migrating.run(mode)
    assert [rows(cluster)[row]["replica"] for row in range(2)] == [2, 3]
    assert cluster.fleet.history == [
        (1_700, 0, "crashed"), (1_700, 1, "crashed"), (1_700, 0, "failed"), (1_700, 1, "failed"),
        (51_700, 0, "starting"), (51_700, 0, "ready"), (51_700, 1, "starting"), (51_700, 1, "ready"),
    ]  # fmt: skip


@MODES
def test_a_replica_that_is_down_or_starting_is_back_with_its_node_and_not_earlier(mode: str) -> None:
    # replica 0 would be back at 2,600; replica 4 starts on node 2, which fails at 3,000 for 5,000 ns
    failures = Failures(
        (Crash(0, 600, 2_000),),
        adds=(Add(500, 4_000),),
        nodes=(OnNode(0, Crash(-1, 700, 9_000)), OnNode(2, Crash(-1, 3_000, 5_000))),
    )
    history = four(failures).run(mode).fleet.history
    assert [each for each in history if each[1] == 0] == [
        (600, 0, "crashed"), (600, 0, "failed"), (9_700, 0, "starting"), (9_700, 0, "ready")
    ]  # fmt: skip
    assert [each for each in history if each[1] == 4] == [
        (500, 4, "starting"), (3_000, 4, "failed"), (8_000, 4, "starting"), (8_000, 4, "ready")
    ]  # fmt: skip


@MODES
def test_two_crashes_that_end_at_the_same_time_start_a_replica_once(mode: str) -> None:
    failures = Failures((Crash(0, 600, 9_100),), nodes=(OnNode(0, Crash(-1, 700, 9_000)),))
    history = four(failures).run(mode).fleet.history
    assert [state for _, index, state in history if index == 0] == ["crashed", "failed", "starting", "ready"]


@MODES
def test_a_node_that_is_slow_or_drains_is_so_with_all_its_replicas(mode: str) -> None:
    slow = rows(four(Failures(nodes=(OnNode(1, Slowdown(-1, 0, 10**9, 3.0)),))).run(mode))
    assert [slow[row]["finished_ns"] for row in range(4)] == [3_000, 3_000, 9_000, 9_000]
    history = four(Failures(nodes=(OnNode(1, Drain(-1, 1_500)),))).run(mode).fleet.history
    assert history == [(1_500, 2, "draining"), (1_500, 3, "draining"), (3_000, 2, "gone"), (3_000, 3, "gone")]


@MODES
def test_what_starts_while_a_node_is_down_goes_to_another(mode: str) -> None:
    # the added replica takes neither the place of replica 0, whose node is down, nor one on the full node 1
    failures = Failures(
        nodes=(OnNode(0, Crash(-1, 700, -1)), OnNode(2, Drain(-1, 5_000))), drains=(Drain(0, 800),), adds=(Add(900, 0),)
    )
    history = four(failures).run(mode).fleet.history
    assert history[-2:] == [(5_000, 4, "draining"), (5_000, 4, "gone")]


PLAIN: dict[str, Any] = {"trace": "synth:rate=20,prompt=200,output=20", "requests": 40, "gpu": "h100"}
EIGHT = {**PLAIN, "model": "llama-3.2-1b", "replicas": 4, "tp": 4, "router": "round-robin"}


def test_a_node_of_a_scenario_has_eight_gpus_or_as_many_as_it_says() -> None:
    def lost(**cluster: Any) -> set[int]:
        failures = {"failures": ["crash:node=1,at=1"], "reroutes": 0, **cluster}
        requests = servesim.simulate({**EIGHT, "cluster": failures}, intervals=False).requests
        served = requests[requests["arrival_ns"] > 1_000_000_000]["replica"]
        return {*range(4)} - {*served}

    assert lost() == {2, 3}
    assert lost(gpus_per_node=4) == {1}
    assert lost(gpus_per_node=2) == {0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crash:node=2,at=1", "the node must be from 0 to 1"),
        ("drain:node=7,at=1", "cluster.failures: there is no node 7; 2 have been in use"),
        ("crash:node=0.5,at=1", "the node must be from 0 to 1"),
        ("crash:node=0,replica=1,at=1", "replica and node are both specified"),
        ("crash:at=1", "replica is missing"),
        ("add:node=0,at=1", "add: unknown key 'node'"),
    ],
)
def test_a_node_that_cannot_fail_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        servesim.simulate({**EIGHT, "cluster": {"failures": [text]}})
