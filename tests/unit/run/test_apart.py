"""Prompts and answers apart, from a scenario: pools, figures, columns, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import servesim
from servesim.contracts.router import routers
from servesim.errors import UserError
from servesim.features.handoff.figures import STAGES
from servesim.features.handoff.links import KINDS
from servesim.policies.routing._behind import InFront

RUN: dict[str, Any] = {
    "trace": "synth:prompt=2000,output=50,rate=4",
    "requests": 20,
    "model": "llama-3.1-8b",
    "gpu": "h100",
}


@pytest.fixture(scope="module")
def result() -> servesim.Result:
    return servesim.simulate(**RUN, pd="2x1:1x2")


def test_pd_is_short_for_two_pools(result: servesim.Result) -> None:
    pools = [(p["name"], p["role"], p["replicas"], p["tp"]) for p in result.scenario.pools]
    assert pools == [("prefill", "prefill", 2, 1), ("decode", "decode", 1, 2)]
    again = servesim.simulate(result.scenario)
    assert again.summary["disaggregation"] == result.summary["disaggregation"]


def test_stages_add_up_to_the_latency(result: servesim.Result) -> None:
    found, times = result.summary["disaggregation"], result.summary["latency_ms"]
    means = [found["stages_ms"][name]["mean"] for name in STAGES]
    out_ms = result.requests["finished_ns"].sub(result.requests["last_token_ns"]).max() / 1e6
    assert sum(means[:-1]) == pytest.approx(times["ttft"]["mean"], abs=out_ms + 1e-6)
    assert sum(means) == pytest.approx(times["e2el"]["mean"], abs=out_ms + 1e-6)


@pytest.mark.parametrize("name", [name for name in routers.names() if issubclass(routers.resolve(name)[0], InFront)])
def test_a_router_that_holds_requests_back_does_so_before_their_prompts_alone(name: str) -> None:
    busy = {**RUN, "trace": "synth:prompt=300,output=100,rate=200", "requests": 150}
    found = servesim.simulate(**busy, pd="1x1:1x1", router=name)
    requests = found.summary["requests"]
    assert requests["completed"] > 0
    assert requests["completed"] + requests["rejected"] == 150
    assert found.summary["disaggregation"]["stages_ms"]["first_step"]["mean"] > 0
    refused = found.requests[found.requests["state"] == "rejected"]
    assert (refused["scheduled_ns"] < 0).all()


@pytest.mark.feature("bars")
def test_no_such_server_was_measured(result: servesim.Result) -> None:
    assert result.summary["intervals"]["kind"] is None


def test_both_sides_count_what_they_served(result: servesim.Result) -> None:
    pools, table = result.summary["pools"], result.requests
    assert [pools[name]["requests"] for name in ("prefill", "decode")] == [20, 20]
    assert [one["requests"] for one in result.summary["replicas"]] == [10, 10, 20]
    assert [pools[name]["output_tokens"] for name in ("prefill", "decode")] == [0, 20 * 50]
    waited = (table["scheduled_ns"] - table["arrival_ns"]).mean() / 1e6
    assert pools["prefill"]["queue_ms"] == pytest.approx(waited)
    at_decode = pools["decode"]["queue_ms"]
    first = result.summary["disaggregation"]["stages_ms"]["first_step"]["mean"]
    assert 0 <= at_decode < first, "the wire is no queue, nor is the other side's"


def test_what_only_the_prefill_side_saw_is_not_counted_at_the_other() -> None:
    found = servesim.simulate(**{**RUN, "requests": 2, "trace": "synth:prompt=2000,output=1,rate=4"}, pd="1x1:1x1",
                              clients={"timeout_s": 0.01}).summary  # fmt: skip
    assert [one["requests"] for one in found["replicas"]] == [2, 0]


def test_what_is_sent_is_the_kv_of_whole_blocks_and_takes_bytes_over_the_narrower_end(result: servesim.Result) -> None:
    table, kind = result.requests, KINDS["rdma-400"]
    per_token = 2 * 32 * 8 * 128 * 2  # keys and values, layers, KV heads, width, bytes
    assert set(table["kv_bytes"]) == {2000 * per_token}  # 125 blocks of 16
    alone = kind.start_us * 1e3 + 2000 * per_token / kind.gb_s  # out of one GPU, into two
    wire = table["received_ns"] - table["reserved_ns"]
    assert wire.min() == pytest.approx(alone, rel=1e-6)
    assert set(table["prefill_replica"]) == {0, 1}
    assert set(table["replica"]) == {2}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"pd": "2x1"}, "REPLICASxTP"),
        ({"pd": "1x1:1x1", "handoff": "nixl"}, "handoff 'nixl' is unknown"),
        ({"handoff": "vllm-nixl"}, "no pool has the role"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:link=string"}, "link is 'string'"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:gb_s=0"}, "gb_s is 0"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:gb_s=1e-300"}, "gb_s is 1e-300"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:gb_s=1e300"}, r"gb_s is 1e\+300"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:start_us=2e15"}, "start_us is .* but must be at most 1e"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:http_ms=2e12"}, "http_ms is .* but must be at most 1e"),
        ({"pd": "1x1:1x1", "handoff": "vllm-nixl:lease_s=2e9"}, "lease_s is .* but must be at most 1e"),
        ({"pd": "1x1:1x1", "handoff": f"vllm-nixl:message_overhead_bytes={2**31}"}, "message_overhead_bytes is"),
        ({"pd": "1x1:1x1", "scheduler": "continuous", "kv": "paged"}, "cannot wait for KV"),
        ({"pools": [{"name": "a", "role": "prefill"}]}, "no pool has the role decode"),
        ({"pools": [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode", "kv_dtype": "fp8"}]}, "KV form"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        servesim.simulate(**RUN, **settings)


def test_of_layers_with_windows_goes_what_later_tokens_reach_into() -> None:
    """gpt-oss: 18 layers keep all, 18 a window of 128; 2,048 bytes a token and layer, blocks of 16. Of 2,000 tokens
    125 blocks go, and of a window those from token 1,873 on: 8."""
    found = servesim.simulate(**{**RUN, "requests": 2, "model": "gpt-oss-120b", "gpu": "h200"}, pd="1x1:1x1").summary
    assert found["disaggregation"]["gigabytes"] * 1e9 == 2 * (125 + 8) * 16 * 18 * 2048
