"""Prefill and decode replicas that come and go, by hand: every step takes 1,000 ns, a token of KV is a byte and takes a
ns, autoscalers are asked every 7,000 ns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import servesim
from servesim.contracts.scaler import PoolLoad
from servesim.features.handoff.vllm import VllmNixlParams
from servesim.features.scaling.part import Scaled, Scaling
from servesim.workload.trace import Trace
from tests.support.apart import handoff_of
from tests.support.scaled import ScaledApart, Told
from tests.support.worlds import ToyCost, toy_trace

S = 10**9
STEPS = ToyCost(fixed=1000, token=0, context=0)


def scaled(prefill: list[int], decode: list[int], **fields: Any) -> ScaledApart:
    """Prompts of 32 tokens and answers of 3, 4,000 ns of proxy, 700 ns until a transfer begins."""
    world = ScaledApart(
        toy_trace([0], [32], [3]),
        cost=STEPS,
        num_blocks=100,
        decode_blocks=100,
        start_ns=700,
        replicas=2,
        protocol=VllmNixlParams(http_ms=0.004),
        answers=(prefill, decode),
        ready_ns=900,
    )
    return replace(world, **fields)


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_prefill_replica_that_drains_stays_until_the_kv_it_keeps_has_been_read(mode: str) -> None:
    # decode memory for one prompt: the second one is read from 8,732 to 9,464; the prompts are computed at 2,000
    trace = toy_trace([0, 0], [32, 32], [3, 3])
    cluster = scaled([0], [1], trace=trace, decode_blocks=4).run(mode, check=True)
    second = max(handoff_of(cluster).done, key=lambda p: p.request.row)
    assert second.released_ns == 9464
    assert [(ns, state) for ns, index, state in cluster.fleet.history if index == 0] == [
        (7000, "draining"),
        (9464, "gone"),
    ]


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_a_decode_replica_that_drains_finishes_its_answers_and_the_next_prompt_waits_for_a_new_one(mode: str) -> None:
    trace = toy_trace([0, 6000], [32, 32], [3, 3])
    cluster = scaled([1], [0], trace=trace).run(mode, check=True)
    first, second = sorted(handoff_of(cluster).done, key=lambda p: p.request.row)
    assert first.request.last_token_ns == 8732
    # the second prompt is computed at 7,000 and would be sent at 11,000; one that waits is seen at 14,000
    assert cluster.fleet.history[:4] == [(7000, 1, "draining"), (8732, 1, "gone"), (14000, 2, "starting"),
                                         (14900, 2, "ready")]  # fmt: skip
    assert (second.decode, second.sent_ns, second.received_ns) == (2, 14900, 15632)


def test_a_scaler_sees_its_pool_and_on_demand_the_other_ones_and_their_latencies() -> None:
    class Seeing(Told):
        needs = frozenset({"pools", "latency"})

    world = replace(scaled([1], [1]), trace=toy_trace([0, 20_000], [32, 32], [3, 3]))
    cluster = super(ScaledApart, world).cluster("fast")
    seeing, plain = Seeing([1]), Told([1])
    pools = cluster.fleet.pools
    cluster.add(Scaling([Scaled(pools[0], seeing, 900, 0, 5), Scaled(pools[1], plain, 900, 0, 5)]))
    cluster.run()
    early, later = seeing.saw[:2]  # at 7,000 and 14,000
    assert (early.arrived, early.prompt_tokens, early.others["decode"].arrived) == (1, 32, 1)
    decode: PoolLoad = later.others["decode"]
    assert (later.arrived, decode.finished, decode.output_tokens) == (0, 1, 3)
    assert decode.ttft_s == pytest.approx(6732e-9)
    assert decode.tpot_s == pytest.approx(1000e-9)
    assert decode.e2e_s == pytest.approx(8732e-9)
    assert plain.saw[1].finished == 1
    assert plain.saw[1].ttft_s is None
    assert not plain.saw[1].others


def parts_of(settings: dict[str, Any], trace: Trace) -> tuple[servesim.Result, Scaling]:
    found: list[Scaling] = []
    result = servesim.simulate(
        {"model": "llama-3.1-8b", "gpu": "h200", "router": "least-requests", **settings},
        trace=trace,
        on_ready=lambda setup: found.extend(part for part in setup.parts if isinstance(part, Scaling)),
    )
    return result, found[0]


FEW = Trace.from_lengths("few", [0, S], [100, 100], [5, 5])


def test_both_pools_share_a_planner_and_have_an_hpa_each() -> None:
    _, planner = parts_of({"pd": "1x1:1x2", "scaler": "dynamo-planner"}, FEW)
    prefill, decode = planner.scaled
    assert prefill.scaler is decode.scaler
    profiles = prefill.scaler.profiles
    assert [(name, one.role, one.num_gpus) for name, one in profiles.items()] == [
        ("prefill", "prefill", 1),
        ("decode", "decode", 2),
    ]
    _, hpa = parts_of({"pd": "1x1:1x2", "scaler": "hpa"}, FEW)
    assert hpa.scaled[0].scaler is not hpa.scaled[1].scaler


def test_a_prefill_replica_more_takes_prompts_once_it_has_started_and_decode_stays() -> None:
    # 40 prompts of 6,000 tokens a second are more than one H200 computes; decode has little to do
    many = Trace.from_lengths("rush", [i * S // 40 for i in range(1200)], [6000] * 1200, [5] * 1200)
    pools = [
        {"name": "p", "role": "prefill", "scaler": "hpa:target=1,max=2"},
        {"name": "d", "role": "decode", "scaler": "hpa:metric=running,target=50,max=3"},
    ]
    start = {"node_s": 3, "pull_s": 1, "boot_s": 0, "weights_gb_s": 1000, "compile_s": 0, "graphs_s": 2, "warm_up_s": 1}
    result, scaling = parts_of({"pools": pools, "start": start}, many)
    assert [(ns / S, wanted) for ns, wanted in scaling.scaled[0].wanted][:1] == [(15.0, 2)]
    assert {wanted for _, wanted in scaling.scaled[1].wanted} == {1}
    ready = 15 + 3 + 1 + 2 * 8.03e9 / 1e12 + 2 + 1
    first = result.requests[result.requests["prefill_replica"] == 2]["arrival_ns"].min() / S
    assert ready - 0.01 < first < ready + 0.05
    assert result.summary["requests"]["completed"] == 1200
