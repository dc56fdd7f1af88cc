"""Crashes, stragglers and what becomes of their requests, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.errors import UserError
from servesim.features.failures import FailuresFeature
from servesim.features.failures.part import LOST, Crash, Failures, Slowdown
from servesim.features.failures.setup import failures_of
from servesim.records.columns import REQUEST_COLUMNS
from servesim.run.scenario import Scenario
from tests.support.worlds import ToyCost, World, toy_trace

MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
PAUSE = 500


def run(mode: str, trace_of: World, **failures: object) -> dict[int, dict[str, int]]:
    """The records of requests, by row."""
    if failures:
        usual = {"backoff_ns": PAUSE, "jitter": 0.0}
        trace_of.failures = Failures(**usual | failures)  # type: ignore[arg-type]
    return records(trace_of.run(mode))


def records(cluster: Cluster) -> dict[int, dict[str, int]]:
    rows = cluster.recorder.requests.array().tolist()
    return {row[0]: dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in rows}


def world(**more: object) -> World:
    """One request of ten tokens and an answer of five, on the first of two replicas."""
    return World(toy_trace([0], [10], [5]), replicas=2, router="least-requests", cost=ToyCost(), **more)  # type: ignore[arg-type]


@MODES
def test_a_request_lost_before_its_first_token_is_served_by_another_replica_after_a_pause(mode: str) -> None:
    alone = run(mode, world())[0]
    crashed = run(mode, world(), crashes=(Crash(0, 700, -1),))[0]
    assert alone["first_token_ns"] > 700
    assert (alone["replica"], crashed["replica"]) == (0, 1)
    for name in ("first_token_ns", "last_token_ns", "finished_ns", "scheduled_ns"):
        assert crashed[name] == alone[name] + 700 + PAUSE
    assert crashed["arrival_ns"] == 0
    assert crashed["output_len"] == 5


@MODES
def test_a_request_lost_after_its_first_token_fails_with_what_it_got(mode: str) -> None:
    alone = run(mode, world())[0]
    crash = alone["first_token_ns"] + 1
    cluster_world = world()
    lost = run(mode, cluster_world, crashes=(Crash(0, crash, -1),))[0]
    assert (lost["state"], lost["output_len"], lost["replica"]) == (State.ABORTED, 1, 0)
    assert lost["finished_ns"] == crash


@MODES
def test_what_is_sent_before_a_crash_is_known_fails_until_it_has_been_routed_too_often(mode: str) -> None:
    # By its own count replica 0 is the emptiest each time; pauses are 500 and 750.
    failing = world()
    failing.failures = Failures((Crash(0, 0, -1),), detect_ns=1_000_000, backoff_ns=PAUSE, jitter=0.0, reroutes=2)
    failing.trace = toy_trace([10], [10], [5])
    cluster = failing.run(mode)
    assert cluster.recorder.reasons == {0: LOST}
    assert records(cluster)[0]["finished_ns"] == 10 + 500 + 750


@MODES
def test_requests_wait_while_no_replica_is_ready_and_find_its_cache_cold(mode: str) -> None:
    def served(*crashes: Crash) -> dict[int, dict[str, int]]:
        again = world(kv="prefix-hash")
        again.replicas, again.trace = 1, toy_trace([0, 60_000], [64, 64], [2, 2], runs=[[(1, 64)], [(1, 64)]])
        return run(mode, again, **{"crashes": crashes} if crashes else {})

    assert served()[1]["hit_tokens"] > 0
    cold = served(Crash(0, 50_000, 30_000))[1]
    assert (cold["hit_tokens"], cold["scheduled_ns"], cold["state"]) == (0, 80_000, State.FINISHED)


@MODES
def test_a_straggler_takes_as_many_times_as_long_from_its_next_plan_on(mode: str) -> None:
    alone, slow = run(mode, world())[0], run(mode, world(), slowdowns=(Slowdown(0, 0, 10**9, 3.0),))[0]
    assert slow["finished_ns"] == 3 * alone["finished_ns"]
    late = run(mode, world(), slowdowns=(Slowdown(0, alone["first_token_ns"] + 1, 10**9, 3.0),))[0]
    assert alone["finished_ns"] < late["finished_ns"] < slow["finished_ns"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crahs:replica=0,at=1", "unknown failure 'crahs'"),
        ("crash:replica=2,at=1", "the replica must be from 0 to 1"),
        ("crash:replica=0", "at is missing"),
        ("crash:replica=0,at=-1", "must be a number from 0"),
        ("slow:replica=0,at=5,until=5,factor=2", "'until' must be later than 'at'"),
        ("crash:replica=0,at=1,factor=2", "unknown key 'factor'"),
    ],
)
def test_a_failure_that_cannot_be_is_refused_in_one_line(text: str, says: str) -> None:
    settings = {"trace": "synth:rate=1", "model": "llama-3.1-8b", "gpu": "h200", "replicas": 2}
    scenario = Scenario.of(settings | {"cluster": {"failures": [text]}})
    with pytest.raises(UserError, match=says):
        failures_of(FailuresFeature.settings(scenario), scenario.replicas, 0)


def test_a_scripted_router_replays_its_file_and_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "choices.txt"
    file.write_text("1 0\n1", encoding="utf-8")
    many = World(toy_trace([0, 1, 2], [4] * 3, [1] * 3), replicas=2, router=f"scripted:file={file}")
    assert [records(many.run())[row]["replica"] for row in range(3)] == [1, 0, 1]
    many.trace = toy_trace([0, 1, 2, 3], [4] * 4, [1] * 4)
    with pytest.raises(UserError, match="has only 3 choices, but there are more requests"):
        many.run()
    many.replicas = 1
    with pytest.raises(UserError, match="chooses replica 1, but replicas are numbered from 0 to 0"):
        many.run()
