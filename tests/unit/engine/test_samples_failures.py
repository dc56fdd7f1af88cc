"""Requests with several samples whose replica is lost, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.engine.telling import LOST
from servesim.features.failures.happenings import Crash, Drain, Failures
from servesim.metrics.requests import RequestColumns
from servesim.records.columns import REQUEST_COLUMNS
from servesim.workload.samples import FURTHER, PROMPTS
from servesim.workload.workload import Clients
from tests.support.worlds import World, toy_trace

PAUSE = 500
FORMS: dict[str, dict[str, Any]] = {
    "children": {"scheduler": "vllm", "kv": "prefix-hash"},
    "prefix-first": {"scheduler": "sglang", "kv": "prefix-radix"},
    "fork": {"scheduler": "continuous", "kv": "paged"},
}
ALL_FORMS = pytest.mark.parametrize("form", FORMS)
NEVER = Failures()


def world(form: str, failures: Failures = NEVER, *, at: int = 0, cancel: int = -1, **more: Any) -> World:
    """One request with a prompt of 40 tokens and answers of 5, 4 and 1, on the first of two replicas."""
    trace = toy_trace([at], [40], [5], samples={0: [4, 1]}, cancel=[cancel])
    found = World(trace, replicas=2, router="least-requests", **FORMS[form], **more)
    found.failures = failures._replace(backoff_ns=PAUSE, jitter=0.0)
    return found


def run(form: str, failures: Failures = NEVER, **more: Any) -> tuple[Cluster, dict[int, dict[str, int]]]:
    """The cluster, and the records of all sequences by row; the same in both modes, with nothing left over."""
    clusters = [world(form, failures, **more).run(mode, check=True) for mode in ("fast", "reference")]
    found = [sorted(cluster.recorder.requests.array().tolist()) for cluster in clusters]
    assert found[0] == found[1]
    cluster = clusters[0]
    assert all(replica.core.kv.usage().used == 0 for replica in cluster.replicas)
    assert cluster.num_left == cluster.num_arrived + sum(replica.core.num_forked for replica in cluster.replicas)
    assert not cluster.busy
    assert len(found[0]) == cluster.num_left
    return cluster, {row[0]: dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in found[0]}


def of(records: dict[int, dict[str, int]], name: str) -> list[int]:
    """One column of the samples, first to last."""
    return [records[row][name] for row in (0, FURTHER, FURTHER + 1)]


@ALL_FORMS
def test_all_samples_of_a_request_lost_before_its_first_token_are_served_by_another_replica(form: str) -> None:
    _, alone = run(form)
    cluster, crashed = run(form, Failures((Crash(0, 700, -1),)))
    assert of(crashed, "replica") == [1, 1, 1]
    assert of(crashed, "state") == [State.FINISHED] * 3
    assert of(crashed, "output_len") == [5, 4, 1]
    assert crashed.keys() == alone.keys()
    for name in ("first_token_ns", "last_token_ns", "finished_ns"):
        assert of(crashed, name) == [ns + 700 + PAUSE for ns in of(alone, name)]
    columns = RequestColumns.of(cluster.recorder.requests.array(), cluster.recorder.reasons)
    assert (len(columns), columns.done.tolist()) == (1, [True])


@ALL_FORMS
@pytest.mark.parametrize("migrations", [0, 3])
def test_after_a_first_token_the_samples_fail_that_have_not_finished(form: str, migrations: int) -> None:
    """The third has one token, so it has finished."""
    _, alone = run(form)
    crash = alone[0]["first_token_ns"] + 1
    cluster, lost = run(form, Failures((Crash(0, crash, 0),), migrations=migrations))
    assert of(lost, "state") == [State.ABORTED, State.ABORTED, State.FINISHED]
    assert of(lost, "output_len") == [1, 1, 1]
    assert of(lost, "finished_ns") == [crash, crash, alone[0]["first_token_ns"]]
    assert of(lost, "replica") == [0, 0, 0]
    assert [cluster.recorder.reasons[row] for row in (0, FURTHER)] == [LOST, LOST]
    columns = RequestColumns.of(cluster.recorder.requests.array(), cluster.recorder.reasons)
    assert columns.done.tolist() == [False]
    assert columns.why(State.ABORTED) == {LOST: 1}


@ALL_FORMS
def test_a_request_counts_once_however_often_all_its_samples_are_lost(form: str) -> None:
    crashes = (Crash(0, 700, -1), Crash(1, 700 + PAUSE + 700, 10_000))
    _, served = run(form, Failures(crashes, reroutes=2))
    assert of(served, "state") == [State.FINISHED] * 3
    _, lost = run(form, Failures(crashes, reroutes=1))
    assert {record["state"] for record in lost.values()} == {State.ABORTED}
    assert {record["finished_ns"] for record in lost.values()} == {700 + PAUSE + 700}
    assert len(lost) == (3 if form == "children" else 1), "the others were never sent"


@ALL_FORMS
def test_what_is_sent_to_a_replica_that_is_down_is_one_try_for_all(form: str) -> None:
    """Tries at 10 and 510 are in vain; by the third, at 1260, the router knows of the crash."""
    down = Failures((Crash(0, 0, -1),), detect_ns=900)
    _, alone = run(form)
    _, found = run(form, down._replace(reroutes=2), at=10)
    assert of(found, "state") == [State.FINISHED] * 3
    assert of(found, "replica") == [1, 1, 1]
    assert of(found, "first_token_ns") == [ns + 1260 for ns in of(alone, "first_token_ns")]
    _, failed = run(form, down._replace(reroutes=1), at=10)
    assert {(record["state"], record["finished_ns"]) for record in failed.values()} == {(State.ABORTED, 510)}


def test_a_prompt_that_was_computed_for_samples_to_come_is_computed_again() -> None:
    _, alone = run("prefix-first")
    crash = alone[PROMPTS]["finished_ns"] + 1
    assert crash < alone[0]["first_token_ns"]
    _, found = run("prefix-first", Failures((Crash(0, crash, -1),)))
    again = found[2 * PROMPTS]
    assert [(found[row]["replica"], found[row]["sample"]) for row in (PROMPTS, 2 * PROMPTS)] == [(0, -1), (1, -1)]
    assert again["scheduled_ns"] == crash + PAUSE
    assert of(found, "state") == [State.FINISHED] * 3
    assert of(found, "hit_tokens") == [39, 39, 39]
    assert of(found, "first_token_ns") == [ns + crash + PAUSE for ns in of(alone, "first_token_ns")]


def test_a_client_that_gives_up_while_its_prompt_is_computed_again_takes_all_along() -> None:
    _, alone = run("prefix-first")
    crash = alone[PROMPTS]["finished_ns"] + 1
    for cancel in (crash + 100, crash + PAUSE + 100):
        cluster, found = run("prefix-first", Failures((Crash(0, crash, -1),)), cancel=cancel)
        assert of(found, "state") == [State.ABORTED] * 3
        assert of(found, "finished_ns") == [cancel] * 3
        assert (2 * PROMPTS in found) == (cancel > crash + PAUSE)
        assert cluster.workload.remaining() == 0


def test_samples_fail_with_the_prompt_that_is_computed_again() -> None:
    _, alone = run("prefix-first")
    crash = alone[PROMPTS]["finished_ns"] + 1
    crashes = (Crash(0, crash, -1), Crash(1, crash + PAUSE + 700, 9_000))
    cluster, found = run("prefix-first", Failures(crashes, reroutes=1))
    assert of(found, "state") == [State.ABORTED] * 3
    assert found[2 * PROMPTS]["state"] == State.ABORTED
    assert {cluster.recorder.reasons[row] for row in found if row != PROMPTS} == {LOST}
    _, served = run("prefix-first", Failures(crashes, reroutes=2))
    assert of(served, "state") == [State.FINISHED] * 3
    assert served.keys() == found.keys(), "the prompt was lost, so it is the same request"


@ALL_FORMS
def test_a_client_tries_again_once_for_all_its_samples(form: str) -> None:
    _, alone = run(form)
    crash = alone[0]["first_token_ns"] + 1
    _, found = run(form, Failures((Crash(0, crash, 0),)), clients=Clients(retries=1, retry_ns=100))
    states = sorted((r["request"], r["sample"], r["state"]) for r in found.values() if r["sample"] > 0)
    assert states == [(0, 1, 6), (0, 2, 6), (0, 3, 4), (1, 1, 4), (1, 2, 4), (1, 3, 4)]


@ALL_FORMS
def test_a_replica_that_drains_is_gone_when_all_samples_have_left(form: str) -> None:
    _, alone = run(form)
    cluster, found = run(form, Failures(drains=(Drain(0, 700),)))
    assert found == alone
    assert (max(of(found, "finished_ns")), 0, "gone") in cluster.fleet.history
