"""Crashes and operations with prompts and answers apart, by hand: every step takes 1,000 ns, a token of KV is a byte,
and takes a ns. Undisturbed, the prompt is computed at 1,000, reaches the decode side at 5,000 and is there at 5,732;
tokens come at 6,732, 7,732 and 8,732."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import servesim
from servesim.contracts import State
from servesim.contracts.router import Pair, Router
from servesim.engine.cluster import Cluster
from servesim.engine.telling import LOST
from servesim.errors import UserError
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, OnNode, Slowdown
from servesim.features.handoff.first import SglangParams, TrtllmParams
from servesim.features.handoff.losses import CRASHED
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.workload.workload import Clients
from tests.support.apart import Apart, handoff_of
from tests.support.worlds import ToyCost, World, toy_trace

MODES = pytest.mark.parametrize("mode", ["fast", "reference"])
STEPS = ToyCost(fixed=1000, token=0, context=0)
FOREVER = -1


def apart(*crashes: Crash, sizes: tuple[int, int] = (2, 1), protocol: Any = None, **more: Any) -> Apart:
    """One request of 32 tokens and 3 of answer, 4,000 ns of proxy, 700 ns of start-up; a pause of 500 ns."""
    return Apart(
        toy_trace([0], [32], [3]),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=sum(sizes),
        sizes=sizes,
        protocol=protocol or VllmNixlParams(http_ms=0.004),
        failures=Failures(crashes, **{"backoff_ns": 500, "jitter": 0.0} | more),
    )


def tries(world: Apart, mode: str) -> tuple[Cluster, list[Passage]]:
    """A run to its end, and all passages that began, lost ones too."""
    cluster = world.cluster(mode, check=True)
    handoff, found = handoff_of(cluster), dict[Passage, None]()
    cluster.start()
    while cluster.step():
        found |= dict.fromkeys(handoff.passages.values())
    assert cluster.num_left == cluster.num_arrived
    assert not any((handoff._held, handoff.passages))
    for replica in cluster.replicas:
        usage = replica.core.kv.usage()
        assert usage.used == usage.internal == 0, f"replica {replica.index} keeps {usage}"
    return cluster, [*found]


@MODES
def test_a_prompt_lost_while_it_is_computed_is_sent_to_another_prefill_replica_after_a_pause(mode: str) -> None:
    _, (lost, p) = tries(apart(Crash(0, 700, FOREVER)), mode)
    assert (lost.prefill, lost.lost, p.prefill, p.leg.scheduled_ns) == (0, True, 1, 1200)
    assert (p.received_ns, p.request.first_token_ns, p.request.last_token_ns) == (5732 + 1200, 6732 + 1200, 8732 + 1200)


@MODES
@pytest.mark.parametrize(("at", "known"), [(3_000, 5_000), (5_300, 5_300)])
def test_kv_that_is_lost_before_or_while_it_is_read_fails_the_request_or_is_computed_again(
    mode: str, at: int, known: int
) -> None:
    cluster, (p,) = tries(apart(Crash(0, at, FOREVER)), mode)
    assert (p.request.state, p.request.reason, p.request.finished_ns) == (State.ABORTED, CRASHED, known)
    assert (p.released_ns, p.received_ns, cluster.recorder.reasons) == (at, -1, {0: CRASHED})
    again = VllmNixlParams(http_ms=0.004, kv_load_failure_policy="recompute")
    _, (p,) = tries(apart(Crash(0, at, FOREVER), protocol=again), mode)
    assert (p.request.first_token_ns, p.request.last_token_ns) == (known + 1000, known + 3000)
    assert (p.request.state, p.request.replica) == (State.FINISHED, 2)


@MODES
def test_kv_that_has_been_read_survives_its_source(mode: str) -> None:
    _, (p,) = tries(apart(Crash(0, 5_733, FOREVER)), mode)
    assert (p.request.state, p.request.last_token_ns) == (State.FINISHED, 8732)


@MODES
@pytest.mark.parametrize("patience", [None, 5_400], ids=["waiting", "given up"])
def test_a_node_with_both_sides_takes_kv_in_flight_with_it_whether_its_client_waits_or_not(
    mode: str, patience: int | None
) -> None:
    both = OnNode(0, Crash(-1, 5_500, 1_000))
    world = replace(apart(sizes=(1, 1), nodes=(both,)), clients=Clients(timeout_ns=patience))
    _, passages = tries(world, mode)
    assert [p.received_ns for p in passages] == ([-1, 12_232] if patience is None else [-1])
    assert passages[-1].request.state is (State.FINISHED if patience is None else State.ABORTED)


@MODES
def test_a_transfer_that_breaks_off_leaves_the_link_to_the_others(mode: str) -> None:
    # two prompts of 2,000 tokens from two sources into one link, from 5,700 on: each gets half; 300 each have come at
    # 6,300, when the first source is lost, and the 1,700 of the other take 1,700
    world = apart(Crash(0, 6_300, FOREVER))
    world = replace(
        world, trace=toy_trace([0, 0], [2_000, 2_000], [1, 1]), num_blocks=400, decode_blocks=400, router="round-robin"
    )
    _, (first, second) = tries(world, mode)
    assert (first.prefill, first.request.state) == (0, State.ABORTED)
    assert (second.prefill, second.received_ns) == (1, 6_300 + 1_700)


@MODES
@pytest.mark.parametrize(("renewed", "released"), [(True, 5_300 + 6_000), (False, 1_000 + 9_000)])
def test_a_request_whose_decode_replica_crashes_starts_again_and_its_first_kv_is_kept_until_the_lease_ends(
    mode: str, renewed: bool, released: int
) -> None:
    # a lease of 9,000 ns, renewed for two thirds of it at the time of the crash
    protocol = VllmNixlParams(http_ms=0.004, lease_s=9e-6, lease_renewed=renewed)
    _, (lost, p) = tries(apart(Crash(1, 5_300, FOREVER), sizes=(1, 2), protocol=protocol), mode)
    assert (lost.decode, lost.received_ns, lost.released_ns) == (1, -1, released)
    assert (p.decode, p.leg.scheduled_ns, p.leg.finished_ns, p.sent_ns) == (2, 5_800, 6_800, 10_800)
    assert (p.received_ns, p.request.first_token_ns, p.request.state) == (11_532, 12_532, State.FINISHED)


@MODES
def test_a_request_that_goes_to_a_decode_replica_not_known_to_be_down_fails_there_at_once(mode: str) -> None:
    # by turns: decode replica 1, and at 5,500 + 5,000 decode replica 2; nobody has renewed the first lease
    protocol = VllmNixlParams(http_ms=0.004, lease_s=6e-6)
    world = apart(Crash(1, 100, FOREVER), sizes=(1, 2), protocol=protocol, detect_ns=1_000_000)
    _, (lost, p) = tries(world, mode)
    assert (lost.decode, lost.sent_ns, lost.released_ns) == (1, -1, 7_000)
    assert (p.decode, p.sent_ns, p.request.first_token_ns) == (2, 10_500, 12_232)


@MODES
def test_after_its_first_token_a_request_fails_with_its_decode_replica(mode: str) -> None:
    cluster, (p,) = tries(apart(Crash(1, 7_000, FOREVER), sizes=(1, 2)), mode)
    assert (p.request.state, p.request.finished_ns, p.request.num_output_tokens) == (State.ABORTED, 7_000, 1)
    assert cluster.recorder.reasons == {0: LOST}


@MODES
def test_a_request_that_migrates_keeps_its_first_token_and_computes_the_others_into_its_prompt(mode: str) -> None:
    cluster, (lost, p) = tries(apart(Crash(1, 7_000, FOREVER), sizes=(1, 2), migrations=1), mode)
    assert (lost.decode, p.decode, p.leg.prompt_len, p.num_bytes) == (1, 2, 33, 33)
    assert (p.leg.finished_ns, p.sent_ns, p.received_ns) == (8_000, 12_000, 12_733)
    assert (p.request.first_token_ns, p.request.last_token_ns) == (6_732, 14_733)
    assert (p.request.num_output_tokens, p.request.state, p.request.num_migrations) == (3, State.FINISHED, 1)
    gaps = [array.tolist() for array in cluster.recorder.itl()]
    assert gaps == [[1_000, 13_733 - 6_732], [1, 1]]
    assert cluster.recorder.requests.column("scheduled_ns").tolist() == [0]


@MODES
def test_it_migrates_no_more_often_than_it_may(mode: str) -> None:
    # the second try has its first token at 13,733 on replica 2
    world = apart(Crash(1, 7_000, 0), Crash(2, 14_000, FOREVER), sizes=(1, 2), migrations=1)
    _, (_, p) = tries(world, mode)
    assert (p.request.state, p.request.num_output_tokens, p.request.finished_ns) == (State.ABORTED, 2, 14_000)


@MODES
def test_replicas_that_are_not_apart_migrate_their_requests_as_well(mode: str) -> None:
    # tokens at 1,000 and 2,000; the step in flight at 2,500 is lost, and one computes 12 tokens until 3,500
    world = World(toy_trace([0], [10], [5]), replicas=2, router="least-requests", cost=STEPS)
    world.failures = Failures((Crash(0, 2_500, FOREVER),), migrations=1)
    cluster = world.run(mode)
    columns = ("replica", "scheduled_ns", "first_token_ns", "last_token_ns", "output_len", "recomputed_tokens")
    found = {name: cluster.recorder.requests.column(name).tolist() for name in columns}
    assert found == dict(zip(columns, ([1], [0], [1_000], [5_500], [5], [11]), strict=True))
    assert [array.tolist() for array in cluster.recorder.itl()] == [[1_000, 1_500], [3, 1]]


@MODES
def test_both_halves_of_a_request_of_sglang_are_lost_with_either_replica(mode: str) -> None:
    # memory on the decode side at 0, the prompt at the prefill side at 1,000, computed at 2,000, there at 2,732
    protocol = SglangParams(handshake_ms=0.001)
    _, (p,) = tries(apart(sizes=(2, 2), protocol=protocol), mode)
    assert (p.leg.scheduled_ns, p.leg.finished_ns, p.request.first_token_ns) == (1_000, 2_000, 2_732)
    for crash in (Crash(0, 1_500, FOREVER), Crash(2, 1_500, FOREVER)):
        _, (lost, p) = tries(apart(crash, sizes=(2, 2), protocol=protocol), mode)
        assert (lost.prefill, lost.decode, p.prefill, p.decode) == (0, 2, 1, 3)
        assert (p.reserved_ns, p.request.first_token_ns, p.request.state) == (2_000, 4_732, State.FINISHED)
    _, (p,) = tries(apart(Crash(0, 2_500, FOREVER), sizes=(2, 2), protocol=protocol), mode)
    assert (p.request.state, p.request.reason, p.request.finished_ns) == (State.ABORTED, CRASHED, 2_500)


@MODES
def test_the_first_token_from_the_prefill_side_is_the_next_one_of_a_request_that_migrates(mode: str) -> None:
    # the first token comes with the KV at 5,732, the second of a step at 6,732; lost at 7,000 and there at 12,734
    world = apart(Crash(1, 7_000, FOREVER), sizes=(1, 2), protocol=TrtllmParams(http_ms=0.004), migrations=1)
    cluster, (_, p) = tries(world, mode)
    assert (p.leg.prompt_len, p.received_ns, p.request.first_token_ns, p.request.last_token_ns) == (
        *(34, 12_734),
        *(5_732, 12_734),
    )
    assert [array.tolist() for array in cluster.recorder.itl()] == [[1_000, 6_002], [1, 1]]


@MODES
def test_a_replica_that_drains_is_gone_once_its_kv_has_been_read_or_its_answers_have_ended(mode: str) -> None:
    cluster, _ = tries(apart(sizes=(2, 2), drains=(Drain(0, 2_000), Drain(2, 6_000))), mode)
    assert [each for each in cluster.fleet.history if each[2] == "gone"] == [(5_732, 0, "gone"), (8_732, 2, "gone")]


@MODES
def test_a_replica_of_either_side_is_added_to_its_pool(mode: str) -> None:
    drains, adds = (Drain(0, 0), Drain(1, 0)), (Add(0, 300, 0), Add(0, 400, 1))
    world = replace(apart(sizes=(1, 1), drains=drains, adds=adds), trace=toy_trace([10], [32], [3]))
    cluster, (p,) = tries(world, mode)
    assert [replica.role for replica in cluster.replicas[2:]] == ["prefill", "decode"]
    assert (p.prefill, p.decode, p.request.first_token_ns) == (2, 3, 6_732 + 300)


@MODES
@pytest.mark.parametrize(("slow", "computed", "first"), [(0, 3_000, 8_732), (1, 1_000, 8_732)])
def test_a_straggler_on_either_side_takes_three_times_as_long(mode: str, slow: int, computed: int, first: int) -> None:
    _, (p,) = tries(apart(sizes=(1, 1), slowdowns=(Slowdown(slow, 0, 10**9, 3.0),)), mode)
    assert (p.leg.finished_ns, p.request.first_token_ns) == (computed, first)


@MODES
def test_a_computed_prompt_waits_for_a_decode_replica_that_comes_back(mode: str) -> None:
    _, (p,) = tries(apart(Crash(1, 100, 8_000), sizes=(1, 1)), mode)
    assert (p.sent_ns, p.request.first_token_ns) == (8_100, 9_832)


@MODES
def test_the_source_keeps_the_kv_of_a_request_that_has_failed_or_was_given_up_until_the_lease_ends(mode: str) -> None:
    protocol = VllmNixlParams(http_ms=0.004, lease_s=9e-6)
    _, (p,) = tries(apart(Crash(1, 5_300, FOREVER), sizes=(1, 1), protocol=protocol, reroutes=0), mode)
    assert (p.request.finished_ns, p.released_ns) == (5_300, 5_300 + 6_000)
    given_up = replace(apart(Crash(1, 5_300, 100), sizes=(1, 1), protocol=protocol), clients=Clients(timeout_ns=5_200))
    _, (p,) = tries(given_up, mode)
    assert (p.request.finished_ns, p.released_ns) == (5_200, 5_300 + 6_000)


@MODES
def test_a_prompt_of_sglang_whose_handshake_is_cut_off_by_a_crash_is_computed_once(mode: str) -> None:
    _, (lost, p) = tries(apart(Crash(2, 500, FOREVER), sizes=(2, 2), protocol=SglangParams(handshake_ms=0.001)), mode)
    assert (lost.leg.scheduled_ns, p.reserved_ns, p.leg.scheduled_ns, p.request.first_token_ns) == (
        *(-1, 1_000),
        *(2_000, 3_732),
    )


@MODES
def test_a_request_of_sglang_that_waits_for_a_decode_replica_begins_its_patience_anew(mode: str) -> None:
    # lost at 500 and routed again at 1,000; its patience ends at 1,500 at first, and at 2,500 then
    protocol = SglangParams(handshake_ms=0.001, bootstrap_timeout_s=1.5e-6)
    trace = toy_trace([10], [32], [3])
    world = replace(apart(Crash(2, 0, 2_000), Crash(0, 500, FOREVER), sizes=(2, 1), protocol=protocol), trace=trace)
    _, (lost, p) = tries(world, mode)
    assert (lost.sent_ns, p.sent_ns, p.request.state) == (-1, 2_000, State.FINISHED)


@MODES
def test_a_client_of_sglang_may_leave_while_no_decode_replica_is_ready_and_its_prompt_is_not_there_yet(
    mode: str,
) -> None:
    world = apart(Crash(2, 0, 90_000), protocol=SglangParams(handshake_ms=0.001))
    world = replace(world, trace=toy_trace([10], [32], [3]), clients=Clients(timeout_ns=3_000))
    _, (p,) = tries(world, mode)
    assert (p.request.state, p.request.finished_ns, p.decode) == (State.ABORTED, 3_010, -1)
    assert (p.leg.state, p.leg.scheduled_ns) == (State.ABORTED, -1)


@MODES
def test_kv_of_trtllm_that_is_lost_before_it_is_read_fails_the_request(mode: str) -> None:
    _, (p,) = tries(apart(Crash(0, 3_000, FOREVER), protocol=TrtllmParams(http_ms=0.004)), mode)
    assert (p.request.state, p.request.reason, p.request.finished_ns) == (State.ABORTED, CRASHED, 5_000)


@MODES
def test_kv_that_has_come_during_a_step_is_lost_with_the_replica_before_the_step_ends(mode: str) -> None:
    # steps end at 6,732 and 7,732; the second request gets memory at 6,732, and its 132 tokens are there at 7,564; they
    # come again 500 + 1,000 + 4,000 + 832 after 7,600
    world = apart(Crash(1, 7_600, 100), sizes=(1, 1), protocol=TrtllmParams(http_ms=0.004))
    cluster, found = tries(replace(world, trace=toy_trace([0, 300], [32, 132], [9, 3])), mode)
    assert [p.received_ns for p in found] == [5_732, 7_564, 13_932]
    assert cluster.recorder.reasons == {0: LOST, 1: "length"}


class Pairs(Router):
    """Always the same pair."""

    def route(self, request: Any, views: Any) -> Pair:
        return Pair(0, 1)


@MODES
def test_a_decode_replica_that_drains_stays_for_a_request_that_was_meant_for_it(mode: str) -> None:
    cluster = apart(sizes=(1, 2), drains=(Drain(1, 2_000),)).cluster(mode, check=True)
    cluster.router = Pairs(None, 3)
    cluster.run()
    (p,) = handoff_of(cluster).done
    assert (p.decode, p.request.state) == (1, State.FINISHED)
    assert cluster.fleet.history == [(2_000, 1, "draining"), (8_732, 1, "gone")]


@MODES
def test_a_deadline_of_the_first_token_is_void_for_a_request_that_migrates(mode: str) -> None:
    # first token at 6,732; lost at 7,000 and waiting until 9,000 or, apart, computing its prompt again
    world = replace(
        apart(Crash(0, 7_000, 2_000), Crash(1, 7_000, 2_000), sizes=(1, 1), migrations=1),
        clients=Clients(ttft_timeout_ns=8_000),
    )
    _, (_, p) = tries(world, mode)
    assert (p.request.state, p.request.first_token_ns, p.leg.scheduled_ns) == (State.FINISHED, 6_732, 0)
    world = replace(apart(Crash(1, 7_000, 0), sizes=(1, 1), migrations=1), clients=Clients(ttft_timeout_ns=7_500))
    _, (_, p) = tries(world, mode)
    assert (p.request.state, p.leg.finished_ns) == (State.FINISHED, 8_000)


@MODES
def test_a_replica_that_drains_stays_for_a_prompt_that_is_not_there_yet(mode: str) -> None:
    protocol = SglangParams(handshake_ms=0.001)
    cluster, (p,) = tries(apart(sizes=(2, 1), protocol=protocol, drains=(Drain(0, 500),)), mode)
    assert (p.prefill, p.received_ns) == (0, 2_732)
    assert cluster.fleet.history == [(500, 0, "draining"), (2_732, 0, "gone")]


def test_an_added_replica_of_another_model_could_not_read_the_kv_and_is_refused() -> None:
    settings = {
        "trace": "synth:rate=5,prompt=20,output=4", "requests": 5, "model": "llama-3.2-1b", "gpu": "h200",
        "pd": "1x1:1x1", "cluster": {"failures": ["add:at=0,pool=decode,model=llama-3.1-8b"]},
    }  # fmt: skip
    with pytest.raises(UserError, match="add: prefill and decode replicas must have the same model"):
        servesim.simulate(settings)


def test_a_scenario_adds_a_decode_replica_on_another_gpu() -> None:
    found = servesim.simulate(
        {
            "trace": "synth:rate=20,prompt=100,output=8", "requests": 40, "model": "llama-3.2-1b", "gpu": "h200",
            "pd": "1x1:1x1", "cluster": {"failures": ["add:at=0,startup=0.1,pool=decode,gpu=l40s"]},
        }
    )  # fmt: skip
    replicas = found.summary["replicas"]
    assert [r["pool"] for r in replicas] == ["prefill", "decode", "decode gpu=l40s"]
    assert all(r["requests"] for r in replicas)
