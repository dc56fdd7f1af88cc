"""Benchmark clients by name send as their tools do, under what the user says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import servesim
from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.trace_source import open_scenario
from servesim.workload.client_tools import TURN_MS

BASE: dict[str, Any] = {"trace": "synth:prompt=50,output=5", "model": "qwen3-0.6b", "gpu": "h100"}


def test_inferencex_sends_ten_prompts_a_client_all_at_once() -> None:
    got = Scenario.of({**BASE, "clients": {"tool": "inferencex", "max_concurrency": 8}})
    assert (got.requests, got.rate, got.clients.turn_ms) == (80, float("inf"), TURN_MS)


def test_inferencex_without_a_concurrency_is_refused() -> None:
    with pytest.raises(UserError, match=r"specify clients\.max_concurrency"):
        Scenario.of({**BASE, "clients": {"tool": "inferencex"}})


def test_what_is_given_stays() -> None:
    clients = {"tool": "inferencex", "max_concurrency": 8, "turn_ms": 0}
    got = Scenario.of({**BASE, "requests": 12, "clients": clients})
    assert (got.requests, got.clients.turn_ms) == (12, 0)


@pytest.mark.parametrize("tool", ["vllm-bench", "sglang-bench", "aiperf"])
def test_a_rate_is_poisson(tool: str) -> None:
    got = Scenario.of({**BASE, "rate": 5, "clients": {"tool": tool}})
    assert (got.rate, got.clients.burstiness, got.clients.max_concurrency) == (5, 1.0, None)


def test_without_a_rate_aiperf_is_one_client_and_the_others_send_at_once() -> None:
    assert Scenario.of({**BASE, "clients": {"tool": "aiperf"}}).clients.max_concurrency == 1
    got = Scenario.of({**BASE, "clients": {"tool": "vllm-bench"}})
    assert (got.rate, got.clients.max_concurrency, got.clients.burstiness) == (float("inf"), None, None)


def test_the_resolved_scenario_of_a_tool_is_its_own() -> None:
    got = Scenario.of({**BASE, "clients": {"tool": "inferencex", "max_concurrency": 8}})
    assert Scenario.of(got.model_dump()) == got


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(UserError, match=r"clients\.tool is 'wrk'"):
        Scenario.of({**BASE, "clients": {"tool": "wrk"}})


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (100.0, 0.1)])
def test_gaps_vary_as_the_burstiness_says_and_the_rate_is_exact(burstiness: float, cv: float) -> None:
    scenario = Scenario.of({**BASE, "requests": 20_000, "rate": 4, "clients": {"burstiness": burstiness}})
    arrival = open_scenario(scenario).arrival_ns
    gaps = np.diff(arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert arrival[-1] - arrival[0] == pytest.approx((len(arrival) - 1) / 4 * 1e9, abs=2)


def test_conversations_keep_their_times() -> None:
    scenario = Scenario.of({**BASE, "trace": "synth:turns=chat(turns=3)", "rate": 4, "clients": {"burstiness": 1}})
    with pytest.raises(UserError, match="cannot be used with conversations"):
        open_scenario(scenario)


def test_a_run_of_a_tool_says_that_warm_up_requests_are_not_replayed() -> None:
    result = servesim.simulate(**BASE, clients={"tool": "vllm-bench", "max_concurrency": 4}, requests=12)
    assert any("clients.tool vllm-bench: its warm-up requests" in note for note in result.summary["notes"])


def test_busy_api_processes_are_said() -> None:
    def notes(**more: Any) -> list[str]:
        result = servesim.simulate(**BASE, rate=float("inf"), requests=200, **more)
        return [note for note in result.summary["warnings"] if note.startswith("front end: ")]

    assert len(notes()) == 1
    assert not notes(engine={"api_server_count": 64})
    assert not notes(host="none")


def test_hits_of_a_prefix_cache_are_labelled() -> None:
    def notes(trace: str) -> list[str]:
        result = servesim.simulate(**BASE | {"trace": trace}, requests=60)
        return [note for note in result.summary["notes"] if note.startswith("prefix cache: ")]

    assert len(notes("synth:prompt=300,output=5,prefix=shared(groups=2,length=200,share=1,zipf=1)")) == 1
    assert not notes("synth:prompt=300,output=5")
