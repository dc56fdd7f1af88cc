"""Published comparisons of routers (../shared/cluster.md 7b, d, k; ../shared/groundtruth/cluster).

llm-d's guides: Qwen3-32B on 8 pods of 2 H100, 150 groups of 5 prompts with 6,000 tokens in common and 1,200 of their
own, 1,000 tokens out. A pod's cache holds a sixth of the prompts, all pods together hold them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import servesim
from servesim.policies.routing.dynamo_kv import DynamoKV, DynamoKVParams
from servesim_lab.dynamo.replay import MockEngine, replay
from tests.support.shared_prompts import at_once, ladder

pytestmark = pytest.mark.slow
WARM_UP = (15, 50)
STAGES = {3: 20, 15: 20, 20: 38, 35: 21, 60: 25}
"""Seconds by requests/s, of some of the stages."""
LLMD = {"groups": 150, "each": 5, "head": 6000, "tail": 1200, "output": 1000}
POLLED_S = 0.05
"""Time between two reports of an engine's metrics (llm-d, --refresh-metrics-interval)."""


class Climbed(NamedTuple):
    """Means by requests/s."""

    ttft_s: dict[int, float]
    output_tok_s: dict[int, float]


@cache
def climb(router: str) -> Climbed:
    """Climb the stages."""
    trace, stage = ladder([WARM_UP, *STAGES.items()], **LLMD)
    requests = servesim.simulate(
        trace=trace,
        model="qwen3-32b",
        gpu="h100",
        tp=2,
        replicas=8,
        router=router,
        engine={"gpu_memory_utilization": 0.95, "block_size": 64},
        cluster={"report_every_s": POLLED_S},
        conclude=False,
    ).requests.sort_values("row")
    arrival, first, last = (
        requests[name].to_numpy() / 1e9 for name in ("arrival_ns", "first_token_ns", "last_token_ns")
    )
    found = Climbed({}, {})
    print(router)
    for k, rate in enumerate(STAGES, 1):
        mine = stage == k
        found.ttft_s[rate] = float((first - arrival)[mine].mean())
        found.output_tok_s[rate] = float(mine.sum() * LLMD["output"] / (last[mine].max() - arrival[mine].min()))
        print(f"{rate:>3}/s: {found.ttft_s[rate]:7.3f} s, {found.output_tok_s[rate]:6.0f} tokens/s")
    return found


def mean_rate(router: str) -> float:
    """Return output tokens/s, the mean of the stages."""
    return float(np.mean(list(climb(router).output_tok_s.values())))


@pytest.mark.xfail(strict=True, reason="since reports show a step when it has ended, the gain is 1.53 (measured: 2.2)")
def test_both_routers_of_the_guides_are_far_above_a_service_that_deals_out() -> None:
    """Measured, mean of 16 stages: 13,163 and 12,598 tokens/s, against 5,722."""
    approximate, precise, dealt = (mean_rate(name) for name in ("llm-d", "llm-d-precise", "round-robin"))
    assert min(approximate, precise) > 1.6 * dealt


def test_both_routers_of_the_guides_are_alike() -> None:
    approximate, precise = (mean_rate(name) for name in ("llm-d", "llm-d-precise"))
    assert approximate == pytest.approx(precise, rel=0.1)
    assert max(*climb("llm-d").ttft_s.values(), *climb("llm-d-precise").ttft_s.values()) < 0.5


def test_round_robin_comes_out_as_measured_to_the_stage() -> None:
    measured = {3: 0.415, 15: 0.881, 20: 18.103, 35: 24.162, 60: 75.586}
    found = climb("round-robin").ttft_s
    for rate in (20, 35, 60):
        assert found[rate] == pytest.approx(measured[rate], rel=0.25), rate
    assert found[15] < 1.0


@pytest.mark.parametrize(
    ("groups", "each", "gain", "found"),
    [
        (64, 16, 1.1, (0.47, 0.82)),  # the benchmark's defaults
        (410, 5, 1.7, (0.20, 0.71)),  # hit rates as published
    ],
)
def test_sglang_s_cache_aware_router_gains_where_hits_are_as_published(
    groups: int, each: int, gain: float, found: tuple[float, float]
) -> None:
    """Published: 158,596 against 82,665 tokens/s (1.92), hits 75 against 20 %, arguments not given."""
    trace = at_once(groups=groups, each=each, head=2048, tail=128, output=256)
    runs = [
        servesim.simulate(
            trace=trace, model="llama-3.1-8b", gpu="a100", replicas=8, preset="sglang", router=name, conclude=False
        ).summary
        for name in ("round-robin", "sglang-cache-aware")
    ]
    rates = [run["throughput"]["total_token_throughput"] for run in runs]
    print(f"{groups} x {each}: {rates}, ratio {rates[1] / rates[0]:.2f}")
    assert tuple(run["prefix_cache"]["hit_rate"] for run in runs) == pytest.approx(found, abs=0.02)
    assert rates[1] / rates[0] == pytest.approx(gain, abs=0.08)


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest) -> tuple[Any, list[dict[str, Any]]]:
    """The first 2,000 conversations of Mooncake's trace, and what Dynamo's simulator made of them."""
    find: Callable[[str], Path] = request.getfixturevalue("shared_data")
    trace = servesim.load_trace(str(find("traces/mooncake/conversation_trace.jsonl")), spread_ticks="none")
    rows = json.loads(find("groundtruth/cluster/dynamo_mocker_mooncake_policies.json").read_text())["rows"]
    return trace.take(np.arange(2000)), rows


@pytest.mark.parametrize("speed", [1, 2])
def test_dynamo_s_simulator_is_met_exactly_by_round_robin_and_in_the_mean_by_its_kv_router(
    recorded: tuple[Any, list[dict[str, Any]]], speed: int
) -> None:
    trace, rows = recorded
    trace = replace(trace, arrival_ns=(trace.arrival_ns - trace.arrival_ns[0]) // speed)

    def figures(router: Any) -> tuple[float, float, float]:
        done = replay(trace, MockEngine.of({"num_gpu_blocks": 1000, "block_size": 512}), 8, router=router)
        ttft = (done.first_token_ns - trace.arrival_ns) / 1e6
        e2e = (done.last_token_ns - trace.arrival_ns) / 1e6
        return float(ttft.mean()), float(e2e.mean()), done.first_reused_tokens.sum() / trace.prompt_len.sum()

    def truth(name: str) -> Any:
        names = ("mean_ttft_ms", "mean_e2e_latency_ms", "prefix_cache_reused_ratio")
        mine = [row for row in rows if row["name"] == name and row["speedup"] == speed]
        return np.array([[row[key] for key in names] for row in mine]).mean(axis=0)

    assert figures(None) == pytest.approx(tuple(truth("rr8")), rel=1e-3)
    drawn = []
    for seed in range(8):
        router = DynamoKV(DynamoKVParams(), 8)
        router.seed = seed
        drawn.append(figures(router))
    ttft, e2e, reused = np.mean(drawn, axis=0)
    print(f"speed {speed}: ttft {ttft:.1f} ms, e2e {e2e:.0f} ms, reused {reused:.4f}; recorded {truth('kv8')}")
    assert (ttft, e2e) == pytest.approx(tuple(truth("kv8")[:2]), rel=0.015)
    assert reused == pytest.approx(truth("kv8")[2], abs=0.008)
