"""Rolling upgrades, by hand: a step takes 1,000 ns, and a new replica starts in 60,000."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import servesim
from servesim.contracts import State
from servesim.engine.cluster import Cluster
from servesim.engine.telling import LOST
from servesim.errors import UserError
from servesim.features.failures.happenings import Crash, Drain, Failures, OnNode
from servesim.features.failures.upgrade import Upgrade
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.features.scaling.part import Scaled, Scaling
from servesim.records.columns import REQUEST_COLUMNS
from tests.support.apart import Apart
from tests.support.scaled import Told
from tests.support.worlds import ToyCost, World, toy_trace

pytestmark = pytest.mark.feature("failures")
MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
SURGES = pytest.mark.parametrize("surge", [False, True], ids=["in place", "surge"])
STEPS = ToyCost(fixed=1000, token=0, context=0)
LONG = 10**9


def upgrade(**more: Any) -> Upgrade:
    return Upgrade(**{"at_ns": 100_000, "start_ns": 60_000, "grace_ns": LONG} | more)


def upgraded(
    mode: str, *upgrades: Upgrade, replicas: int = 3, answers: list[int] | None = None, **more: Any
) -> Cluster:
    """A run of some replicas, the first of which has a request with an answer of some tokens from 99,500 on."""
    answers = answers or [1]
    world = World(
        toy_trace([99_500] * len(answers), [10] * len(answers), answers),
        replicas=replicas,
        router="round-robin",
        cost=STEPS,
        failures=Failures(upgrades=upgrades, backoff_ns=500, jitter=0.0, **more),
    )
    return world.run(mode, check=True)


def history(cluster: Cluster) -> list[tuple[int, int, str]]:
    """The changes of replicas, in us."""
    return [(ns // 1000, index, state) for ns, index, state in cluster.fleet.history]


def rows(cluster: Cluster) -> dict[int, dict[str, int]]:
    found = cluster.recorder.requests.array().tolist()
    return {row[0]: dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in sorted(found)}


def least_ready(cluster: Cluster, replicas: int) -> int:
    """The least number of ready replicas between two instants."""
    states, least = dict.fromkeys(range(replicas), "ready"), replicas
    ends = [*cluster.fleet.history[1:], (1 << 62, -1, "")]
    for (ns, index, state), (after, *_) in zip(cluster.fleet.history, ends, strict=True):
        states[index] = state
        if after > ns:
            least = min(least, sum(each == "ready" for each in states.values()))
    return least


@MODES
def test_three_replicas_are_replaced_in_turn_each_when_the_last_new_one_is_ready(mode: str) -> None:
    # the request of replica 0 ends at 100,500: its successor starts then
    cluster = upgraded(mode, upgrade())
    assert history(cluster) == [
        (100, 0, "draining"), (100, 0, "gone"), (100, 3, "starting"), (160, 3, "ready"),
        (160, 1, "draining"), (160, 1, "gone"), (160, 4, "starting"), (220, 4, "ready"),
        (220, 2, "draining"), (220, 2, "gone"), (220, 5, "starting"), (280, 5, "ready"),
    ]  # fmt: skip
    assert cluster.fleet.history[1][0] == 100_500
    assert cluster.fleet.history[-1][0] == 280_500
    assert least_ready(cluster, 3) == 2


@MODES
def test_with_surge_a_replica_drains_when_its_successor_is_ready_and_none_is_missing(mode: str) -> None:
    cluster = upgraded(mode, upgrade(surge=True))
    assert history(cluster) == [
        (100, 3, "starting"), (160, 3, "ready"), (160, 0, "draining"), (160, 0, "gone"),
        (160, 4, "starting"), (220, 4, "ready"), (220, 1, "draining"), (220, 1, "gone"),
        (220, 5, "starting"), (280, 5, "ready"), (280, 2, "draining"), (280, 2, "gone"),
    ]  # fmt: skip
    assert least_ready(cluster, 3) == 3


@MODES
def test_a_batch_is_a_window_that_moves_with_each_new_replica_that_is_ready(mode: str) -> None:
    # the answers of replicas 0 and 1 end at 102,500 and 109,500
    cluster = upgraded(mode, upgrade(batch=2), answers=[3, 10])
    assert history(cluster) == [
        (100, 0, "draining"), (100, 1, "draining"),
        (102, 0, "gone"), (102, 3, "starting"), (109, 1, "gone"), (109, 4, "starting"),
        (162, 3, "ready"), (162, 2, "draining"), (162, 2, "gone"), (162, 5, "starting"),
        (169, 4, "ready"), (222, 5, "ready"),
    ]  # fmt: skip
    at_once = upgraded(mode, upgrade(batch=9), answers=[1])
    assert {state for at, _, state in history(at_once) if at == 160} == {"ready"}


@MODES
def test_with_surge_the_next_successor_does_not_wait_for_what_drains(mode: str) -> None:
    cluster = upgraded(mode, upgrade(surge=True), replicas=2, answers=[200])
    assert history(cluster) == [
        (100, 2, "starting"), (160, 2, "ready"), (160, 0, "draining"), (160, 3, "starting"),
        (220, 3, "ready"), (220, 1, "draining"), (220, 1, "gone"), (299, 0, "gone"),
    ]  # fmt: skip


@MODES
def test_after_the_grace_period_what_is_left_is_lost_as_in_a_crash(mode: str) -> None:
    # request 0 has its first token at 100,500 and ends at 105,500; request 1 is there at its end
    def served(grace_ns: int, **more: Any) -> Cluster:
        return upgraded(mode, upgrade(grace_ns=grace_ns), replicas=1, answers=[6], **more)

    cluster = served(5_499)
    assert rows(cluster)[0]["state"] == State.ABORTED
    assert rows(cluster)[0]["finished_ns"] == 105_499
    assert cluster.recorder.reasons == {0: LOST}
    assert history(cluster) == [
        (100, 0, "draining"), (105, 0, "crashed"), (105, 0, "gone"), (105, 1, "starting"), (165, 1, "ready")
    ]  # fmt: skip
    for grace_ns in (5_500, LONG):
        in_time = served(grace_ns)
        assert rows(in_time)[0]["state"] == State.FINISHED
        assert "crashed" not in [state for *_, state in history(in_time)]
    early = served(0)
    assert (rows(early)[0]["replica"], rows(early)[0]["first_token_ns"]) == (1, 160_000 + 1_000)
    migrated = served(5_499, migrations=1)
    assert (rows(migrated)[0]["state"], rows(migrated)[0]["replica"]) == (State.FINISHED, 1)


@MODES
def test_what_is_down_is_replaced_first_and_at_once(mode: str) -> None:
    cluster = upgraded(mode, upgrade(), crashes=(Crash(2, 50_000, 90_000),))
    assert [index for _, index, state in history(cluster) if state == "gone"] == [2, 0, 1]
    assert [(at, index) for at, index, state in history(cluster) if state == "starting"] == [
        (100, 3),
        (160, 4),
        (220, 5),
    ]


@MODES
def test_what_is_gone_when_its_turn_comes_is_passed_over(mode: str) -> None:
    cluster = upgraded(mode, upgrade(), drains=(Drain(1, 120_000),))
    assert [(at, index) for at, index, state in history(cluster) if state == "ready"] == [(160, 3), (220, 4)]


@MODES
@SURGES
def test_a_successor_whose_node_fails_holds_up_the_upgrade_until_it_is_back(mode: str, surge: bool) -> None:
    # replicas 0 to 7 fill node 0; with surge the successor is on node 1, otherwise in the place of replica 0
    failing = OnNode(int(surge), Crash(-1, 130_000, 100_000))
    cluster = upgraded(mode, upgrade(surge=surge), replicas=8, nodes=(failing,))
    assert [(at, index) for at, index, state in history(cluster) if index >= 8 and state == "ready"][:2] == [
        (230, 8),
        (290, 9),
    ]
    assert [index for _, index, state in history(cluster) if state == "gone"] == [*range(8)]


@MODES
def test_a_successor_that_is_drained_before_it_is_ready_leaves_the_old_replica_to_be_replaced_last(mode: str) -> None:
    cluster = upgraded(mode, upgrade(surge=True), drains=(Drain(3, 120_000),))
    assert [index for _, index, state in history(cluster) if state == "gone"] == [3, 1, 2, 0]


@MODES
def test_prefill_and_decode_replicas_are_upgraded_pool_by_pool(mode: str) -> None:
    world = Apart(
        toy_trace([0, 99_500, 200_000], [32] * 3, [3] * 3),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=3,
        sizes=(1, 2),
        protocol=VllmNixlParams(http_ms=0.004),
        failures=Failures(upgrades=(upgrade(pool=1, into=1), upgrade(at_ns=101_000, surge=True))),
    )
    cluster = world.run(mode, check=True)
    assert [rows(cluster)[row]["state"] for row in range(3)] == [State.FINISHED] * 3
    gone = [(at, index) for at, index, state in history(cluster) if state == "gone"]
    assert gone == [(100, 1), (160, 2), (161, 0)]
    assert [cluster.replicas[index].role for index in (3, 4, 5)] == ["decode", "prefill", "decode"]


def scaled(mode: str, surge: bool, wanted: list[int], replicas: int = 3, start_ns: int = 60_000) -> Cluster:
    """An upgrade of replicas of which an autoscaler, asked every 7,000 ns, wants a number."""
    world = World(
        toy_trace([99_500, 700_000], [10, 10], [1, 1]),
        replicas=replicas,
        router="round-robin",
        cost=STEPS,
        failures=Failures(upgrades=(upgrade(surge=surge),)),
        features=(lambda world, pools: Scaling([Scaled(pools[0], Told(wanted), start_ns, 0, 9)]),),
    )
    return world.run(mode, check=True)


@MODES
@SURGES
def test_an_autoscaler_that_wants_as_many_as_there_are_leaves_an_upgrade_alone(mode: str, surge: bool) -> None:
    assert history(scaled(mode, surge, [3])) == history(upgraded(mode, upgrade(surge=surge)))


@MODES
@SURGES
@pytest.mark.parametrize("wanted", [1, 2, 4, 6])
def test_an_upgrade_leaves_as_many_as_an_autoscaler_wants_and_all_are_new(mode: str, surge: bool, wanted: int) -> None:
    cluster = scaled(mode, surge, [3] * 18 + [wanted])  # from 133,000 on: while the first successor starts
    ready = [replica.index for replica in cluster.replicas if replica.state == "ready"]
    assert len(ready) == wanted
    assert min(ready) >= 3
    assert len([*cluster.replicas]) <= 3 + max(wanted, 3) + 1, (
        "none comes and goes in vain but the one that was starting"
    )
    states = dict[int, str]()
    for (ns, index, state), (after, *_) in pairwise([*cluster.fleet.history, (1 << 62, -1, "")]):
        states[index] = state
        staying = sum(each != "gone" for each in {**dict.fromkeys(range(3), ""), **states}.values())
        assert after == ns or staying <= max(wanted, 3) + surge


PLAIN: dict[str, Any] = {"trace": "synth:rate=20,prompt=200,output=20", "requests": 60, "model": "llama-3.1-8b"}


def simulated(*failures: str, **more: Any) -> servesim.Result:
    cluster = {"failures": [*failures], **more.pop("cluster", {})}
    return servesim.simulate({**PLAIN, "gpu": "h100", **more, "cluster": cluster}, intervals=False)


def test_a_scenario_upgrades_its_replicas_to_another_gpu() -> None:
    result = simulated("upgrade:at=0.5,surge=1,startup=0.3,gpu=h200", replicas=2)
    assert {name: pool["replicas"] for name, pool in result.summary["pools"].items()} == {
        "default": 2, "default gpu=h200": 2
    }  # fmt: skip
    assert (result.requests["state"] == int(State.FINISHED)).all()
    assert {*result.requests[result.requests["arrival_ns"] > 1_300_000_000]["replica"]} == {2, 3}


def test_the_summary_says_what_an_upgrade_cost_those_who_came_meanwhile() -> None:
    result = simulated("upgrade:at=0.5,startup=0.3,grace=0.1", replicas=2)
    found, rows = result.summary["upgrades"], result.requests
    assert (found["replaced"], found["lost"]) == (2, int((rows["state"] == int(State.ABORTED)).sum()))
    assert found["lost"] > 0
    assert 2 * 0.3 + 0.1 < found["seconds"] <= 2 * (0.3 + 0.1), "the first has the whole grace period"
    end = 500_000_000 + round(found["seconds"] * 1e9)
    done = rows[rows["state"] == int(State.FINISHED)]
    during = (done["arrival_ns"] >= 500_000_000) & (done["arrival_ns"] < end)
    for name, these in (("ttft_p99_ms", done[during]), ("other_ttft_p99_ms", done[~during])):
        ttft = (these["first_token_ns"] - these["arrival_ns"]) / 1e6
        assert found[name] == pytest.approx(ttft.quantile(0.99))
    assert found["hit_rate"] == found["other_hit_rate"] == 0
    assert "upgrades" not in simulated("add:at=0.5,startup=0", replicas=2).summary


def test_an_upgrade_that_never_ends_lasts_until_the_end_of_the_run() -> None:
    result = simulated("upgrade:at=0.5,startup=0.3", "crash:node=0,at=0.6", replicas=2, cluster={"gpus_per_node": 1})
    assert result.summary["upgrades"]["replaced"] == 1
    assert result.summary["upgrades"]["seconds"] > 1


def test_without_startup_a_new_replica_takes_the_time_of_start() -> None:
    start = {"boot_s": 0, "compile_s": 0, "graphs_s": 0.25, "warm_up_s": 0, "weights_gb_s": 1000}
    result = simulated("upgrade:at=0.5,batch=2", "add:at=0.51", replicas=2, start=start)
    served = result.requests.groupby("replica")["scheduled_ns"].min()
    weights_s = 16.06 / 1000
    assert served.loc[[2, 3, 4]].min() / 1e9 == pytest.approx(0.75 + weights_s, abs=0.1)


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("upgrade:batch=1", {}, "at is missing"),
        ("upgrade:at=1,batch=0", {}, "batch must be a whole number from 1"),
        ("upgrade:at=1,batch=1.5", {}, "batch must be a whole number from 1"),
        ("upgrade:at=1,batch=²", {}, "batch is '²' but must be a number"),
        ("upgrade:at=1,surge=2", {}, "surge must be 0 or 1"),
        ("upgrade:at=1,grace=-1", {}, "grace is '-1' but must be a number from 0"),
        ("upgrade:at=1,replica=0", {}, "upgrade: unknown key 'replica'"),
        ("upgrade:at=1,pool=b", {}, "upgrade: unknown pool 'b'"),
        ("upgrade:at=1,gpu=h999", {}, "upgrade: unknown GPU 'h999'"),
        ("upgrade:at=1", {"pd": "1x1:1x1"}, "upgrade: pool is missing; it must be prefill or decode"),
        (
            "upgrade:at=1,gpu=h200",
            {"scaler": "keda:target=2"},
            "upgrade: an autoscaler counts the replicas of one deployment, and another GPU or model is another",
        ),
    ],
)
def test_an_upgrade_that_cannot_be_is_refused_in_one_line(text: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulated(text, **more)
