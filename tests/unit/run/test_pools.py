"""Pools in a scenario: what each is, what is refused, and what a run says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.run.simulate import simulate
from servesim.workload.trace import Trace

SECOND = 10**9
TRACE = Trace.from_lengths("six", [i * SECOND for i in range(6)], [100] * 6, [5] * 6)
BASE = {"trace": "object:x", "model": "llama-3.1-8b", "gpu": "h200"}
TWO = [{"name": "fast", "replicas": 2}, {"name": "slow", "gpu": "l40s", "engine": {"block_size": 32}}]


def resolve(pools: Any = TWO, trace: Trace = TRACE, **settings: Any) -> Setup:
    return set_up(Scenario.of({**BASE, "pools": pools, **settings}), trace)


def test_what_a_pool_does_not_say_is_the_scenario_s() -> None:
    setup = resolve(kv="paged", engine={"gpu_memory_utilization": 0.8})
    fast, slow = (pool.scenario for pool in setup.pools)
    assert (fast.gpu, slow.gpu) == ("h200", "l40s")
    assert fast.kv["name"] == slow.kv["name"] == "paged"
    assert (fast.engine.block_size, slow.engine.block_size) == (16, 32)
    assert slow.engine.gpu_memory_utilization == 0.8
    assert setup.scenario.replicas == 3
    assert [len(pool.cores) for pool in setup.pools] == [2, 1]
    assert setup.cores[2].kv.block_size == 32
    assert setup.pools[0].cost is not setup.pools[1].cost


def test_a_scenario_with_pools_resolves_to_itself_and_its_text_says_the_same() -> None:
    first = resolve()
    again = set_up(Scenario.of(first.scenario.model_dump()), TRACE)
    assert again.scenario == first.scenario
    assert again.notes == first.notes


def test_without_pools_the_text_of_a_scenario_has_none() -> None:
    assert "pools" not in Scenario.of(BASE).model_dump()


def test_a_pool_as_text_is_what_it_is_as_a_mapping() -> None:
    text = ["fast:replicas=2", "slow:gpu=l40s,engine.block_size=32"]
    assert resolve(text).scenario == resolve().scenario


def test_a_pool_of_a_model_in_other_weights_takes_their_format() -> None:
    pools = [{"name": "a"}, {"name": "b", "model": "meta-llama/Llama-3.3-70B-Instruct-FP8", "tp": 2}]
    assert [pool.scenario.dtype for pool in resolve(pools).pools] == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ("fast", "pools is 'fast', must be a list"),
        ([{"gpu": "h200"}], "a pool has no name"),
        ([{"name": "a"}, {"name": "a"}], "'a' is given twice"),
        ([{"name": "a", "role": "cook"}], "role of a is 'cook', must be both, prefill, decode"),
        ([{"name": "a", "gpuu": "h200"}], "a: unknown key 'gpuu' \\(did you mean \"gpu\"\\?\\)"),
        ([{"name": "a", "replicas": 0}], "a: replicas is 0"),
        ([{"name": "a", "engine": {"block": 3}}], "a: unknown key 'engine.block'"),
        ([7], "7 is no mapping with a name"),
    ],
)
def test_what_is_no_pool_is_refused_in_one_line(pools: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve(pools)


def of_models(*models: str) -> Trace:
    return replace(TRACE, labels={"model": models})


MODELS = [{"name": "small"}, {"name": "large", "model": "llama-3.1-70b", "tp": 4}]


def test_a_request_goes_to_the_pool_whose_name_or_model_it_asks_for() -> None:
    trace = of_models("large", "small", "llama-3.1-70b", "llama-3.1-8b", "large", "large")
    table = simulate({**BASE, "pools": MODELS}, trace=trace).requests
    assert table["replica"].tolist() == [1, 0, 1, 0, 1, 1]


def test_a_model_that_no_pool_serves_is_refused_before_the_run() -> None:
    with pytest.raises(UserError, match="a request asks for model 'larger' \\(did you mean \"large\"\\?\\)"):
        resolve(MODELS, of_models("larger", "", "", "", "", ""))


def test_pools_of_one_model_take_requests_whatever_they_ask_for() -> None:
    assert len(simulate({**BASE, "pools": TWO}, trace=of_models(*["gpt-4"] * 6)).requests) == 6


def test_figures_of_pools_add_up_to_those_of_the_run(tmp_path: Path) -> None:
    summary = simulate({**BASE, "pools": TWO}, trace=TRACE).summary
    pools, replicas = summary["pools"], summary["replicas"]
    assert [one["pool"] for one in replicas] == ["fast", "fast", "slow"]
    assert [one["requests"] for one in replicas] == [2, 2, 2]
    assert sum(pool["usd"] for pool in pools.values()) == pytest.approx(summary["price"]["usd"])
    hours = summary["duration_s"] / 3600
    assert summary["price"]["gpu_hours"] == pytest.approx(3 * hours)
    busy = [(one["busy_share"], one["up_s"]) for one in replicas]
    assert sum(share * up for share, up in busy) / sum(up for _, up in busy) == pytest.approx(
        summary["engine"]["gpu_busy_share"]
    )
    fast, slow = (pools[name]["busy_share"] for name in ("fast", "slow"))
    assert slow > 2 * fast


def test_pools_are_not_served_in_several_processes() -> None:
    with pytest.raises(UserError, match="jobs: replicas cannot be run apart: there are several pools"):
        simulate({**BASE, "pools": TWO}, trace=TRACE, jobs=2)
