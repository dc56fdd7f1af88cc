"""Crashes, stragglers and what becomes of their requests, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import servesim
from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.engine.telling import LOST
from servesim.errors import UserError
from servesim.features.failures import FailuresFeature
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, Slowdown
from servesim.features.failures.setup import Counts, failures_of, ns_of, seconds_of
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


@MODES
def test_of_two_slowdowns_at_once_the_later_one_counts_until_its_own_end(mode: str) -> None:
    later = Slowdown(0, 1, 10**9, 3.0)
    both = run(mode, world(), slowdowns=(Slowdown(0, 0, 2, 9.0), later))[0]
    assert both["finished_ns"] == run(mode, world(), slowdowns=(Slowdown(0, 0, 1, 9.0), later))[0]["finished_ns"]


@MODES
def test_a_replica_that_drains_finishes_its_requests_takes_no_more_and_is_gone(mode: str) -> None:
    draining = world()
    draining.trace = toy_trace([0, 1_000, 1_001], [10] * 3, [5, 2, 2])
    draining.failures = Failures(drains=(Drain(0, 1_000),))
    cluster = draining.run(mode)
    rows = records(cluster)
    assert [rows[row]["replica"] for row in range(3)] == [0, 1, 1]
    assert [rows[row]["state"] for row in range(3)] == [State.FINISHED] * 3
    assert cluster.fleet.history == [(1_000, 0, "draining"), (rows[0]["finished_ns"], 0, "gone")]


@MODES
def test_a_replica_that_is_down_or_idle_and_drains_is_gone_at_once_and_does_not_restart(mode: str) -> None:
    for crashes in ((), (Crash(1, 500, 10_000),)):
        draining = world()
        draining.failures = Failures(crashes, drains=(Drain(1, 1_000), Drain(1, 2_000)))
        history = [each for each in draining.run(mode).fleet.history if each[0] >= 1_000]
        assert history == [(1_000, 1, "draining"), (1_000, 1, "gone")]


@MODES
def test_an_added_replica_serves_after_its_start_and_may_crash_and_drain(mode: str) -> None:
    adding = world()
    adding.trace = toy_trace([0, 1, 6_000, 6_001, 90_000], [10] * 5, [50] * 5)
    adding.failures = Failures(
        (Crash(2, 6_500, 1_000),), drains=(Drain(2, 89_000),), adds=(Add(1_000, 4_000),), backoff_ns=PAUSE, jitter=0.0
    )
    cluster = adding.run(mode)
    assert [each for each in cluster.fleet.history if each[1] == 2] == [
        (1_000, 2, "starting"), (5_000, 2, "ready"), (6_500, 2, "crashed"), (6_500, 2, "failed"),
        (7_500, 2, "starting"), (7_500, 2, "ready"), (89_000, 2, "draining"), (89_000, 2, "gone"),
    ]  # fmt: skip
    assert cluster.fleet.spans == [(0, None), (0, None), (1_000, 89_000)]
    assert [records(cluster)[row]["replica"] for row in range(2)] == [0, 1]


def test_what_happens_to_a_replica_that_is_not_there_is_refused() -> None:
    failing = world()
    failing.failures = Failures(drains=(Drain(2, 1_000),), adds=(Add(1_000, 0),))
    with pytest.raises(UserError, match=r"cluster\.failures: there is no replica 2 at 1e-06 s"):
        failing.run()


@pytest.mark.parametrize("ns", [0, 1, 10**9, 1_000_000_001, 9_007_199_254_740_993, 9_999_999_999_999_999])
def test_seconds_are_read_as_they_were_written_to_the_nanosecond(ns: int) -> None:
    assert ns_of(seconds_of(ns)) == ns


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drain:replica=2,at=1", "the replica must be from 0 to 1"),
        ("drain:replica=0.5,at=1", "the replica must be from 0 to 1"),
        ("drain:replica=0", "at is missing"),
        ("add:startup=5", "at is missing"),
        ("add:at=1,startup=x", "startup is 'x' but must be a number"),
        ("add:at=1,replica=0", "unknown key 'replica'"),
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
        failures_of(FailuresFeature.settings(scenario), Counts(replica=2, node=1), 0)


PLAIN = {"trace": "synth:rate=20,prompt=200,output=20", "requests": 40, "model": "llama-3.1-8b", "gpu": "h100"}


def test_a_replica_of_another_gpu_has_its_own_memory_costs_and_price() -> None:
    failures = ["add:at=0,startup=0,gpu=h200", "drain:replica=0,at=0.5"]
    result = servesim.simulate({**PLAIN, "cluster": {"failures": failures}}, intervals=False)
    pools = result.summary["pools"]
    assert [*pools] == ["default", "default gpu=h200"]
    assert [pools[name]["replicas"] for name in pools] == [1, 1]
    rows = result.requests.set_index("row")
    tpot = (rows.last_token_ns - rows.first_token_ns) / (rows.output_len - 1)
    assert tpot[rows.replica == 1].median() < 0.9 * tpot[rows.replica == 0].median()
    alone = servesim.simulate({**PLAIN, "gpu": "h200"}, intervals=False)
    h200 = result.summary["provenance"]["pools"]["default gpu=h200"]
    assert h200["cost_model"] == alone.summary["provenance"]["cost_model"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"gpu": "h999"}, "add: unknown GPU 'h999'"),
        ({"model": "Qwen/Qwen3-8B-FP8"}, "the weights of Qwen/Qwen3-8B-FP8 are fp8, but those of the endpoint bf16"),
        ({"model": "llama-2-7b"}, "engine.max_model_len is 131072 but must be from 1 to the 4096 positions"),
        ({"gpu": "rtx-4090"}, "engine.max_model_len is 131072, but KV memory has room for only"),
        ({"pool": "b"}, "add: unknown pool 'b'"),
    ],
)
def test_a_replica_that_cannot_serve_the_same_requests_is_not_added(more: dict[str, str], says: str) -> None:
    text = ",".join(["add:at=1", *(f"{key}={value}" for key, value in more.items())])
    with pytest.raises(UserError, match=says):
        servesim.simulate({**PLAIN, "cluster": {"failures": [text]}})


def test_with_several_pools_the_one_that_grows_must_be_named() -> None:
    pools = [{"name": "a"}, {"name": "b", "gpu": "h200"}]
    with pytest.raises(UserError, match="add: pool is missing; it must be a or b"):
        servesim.simulate({**PLAIN, "pools": pools, "cluster": {"failures": ["add:at=1"]}})
    named = {"failures": ["add:at=0,startup=0,pool=b"]}
    result = servesim.simulate({**PLAIN, "pools": pools, "cluster": named}, intervals=False)
    assert {name: pool["replicas"] for name, pool in result.summary["pools"].items()} == {"a": 1, "b": 2}


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
