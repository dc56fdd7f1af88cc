"""Pools in a scenario: what each is, what is refused, and what a run says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servesim.errors import UserError
from servesim.run.pools import pool_scenarios
from servesim.run.scenario import Scenario
from servesim.run.setup import Setup, set_up
from servesim.run.shown import all_rows
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
    assert [pool.scenario.dtype for pool in resolve(pools, of_models(*"ababab")).pools] == ["bf16", "fp8"]


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ("fast", "pools is 'fast' but must be a list"),
        ([{"gpu": "h200"}], "a pool has no name"),
        ([{"name": "a"}, {"name": "a"}], "'a' is specified twice"),
        ([{"name": "a", "role": "cook"}], "role of a is 'cook' but must be both, prefill, decode"),
        ([{"name": "a", "gpuu": "h200"}], "a: unknown key 'gpuu' \\(did you mean \"gpu\"\\?\\)"),
        ([{"name": "a", "replicas": 0}], "a: replicas is 0"),
        ([{"name": "a", "engine": {"block": 3}}], "a: unknown key 'engine.block'"),
        ([7], "7 must be a mapping with a name"),
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
    with pytest.raises(
        UserError, match="a request asks for model 'larger', which no pool serves \\(did you mean \"large\"\\?\\)"
    ):
        resolve(MODELS, of_models("larger", "", "", "", "", ""))


def test_requests_that_name_no_model_are_not_dealt_out_to_pools_of_several() -> None:
    for models, count in ((["small", "", "large", "", "", ""], 4), ([""] * 6, 6)):
        with pytest.raises(
            UserError, match=rf"{count} of 6 requests do not specify a model, but pools serve llama-3.1-70b and l"
        ):
            resolve(MODELS, of_models(*models))
    with pytest.raises(UserError, match="6 of 6 requests do not specify a model"):
        resolve(MODELS)


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


def test_a_pool_alone_has_figures_under_its_name() -> None:
    summary = simulate({**BASE, "pools": ["alone:tp=2"]}, trace=TRACE).summary
    assert summary["pools"]["alone"]["requests"] == 6
    assert dict(all_rows(summary))["pool alone"].startswith("6 requests, 1.00 replicas up on average")


@pytest.mark.feature("scaling")
def test_the_parts_of_a_start_may_be_a_text() -> None:
    told = Scenario.of({**BASE, "scaler": "hpa", "start": "node_s=60,pull_s=2.5"})
    assert told.start == {"node_s": 60.0, "pull_s": 2.5}


@pytest.mark.parametrize("name", ["x" * 101, "\x1b[31m", "a\nb"])
def test_a_name_that_would_garble_every_table_is_none(name: str) -> None:
    with pytest.raises(
        UserError, match="is not a valid name: it must have at most 100 characters, all printable"
    ) as error:
        resolve([{"name": name}])
    assert len(str(error.value)) < 300


def test_pools_are_not_served_in_several_processes() -> None:
    with pytest.raises(UserError, match="jobs: replicas cannot run in separate processes: there are several pools"):
        simulate({**BASE, "pools": TWO}, trace=TRACE, jobs=2)


@pytest.mark.feature("scaling")
def test_replicas_come_by_load_are_paid_for_from_the_beginning_of_their_start_and_go_when_empty() -> None:
    many = Trace.from_lengths("rush", [i * SECOND // 50 for i in range(3000)], [1000] * 3000, [150] * 3000)
    start = {"node_s": 3, "boot_s": 0, "compile_s": 0, "graphs_s": 0, "warm_up_s": 5}
    parts = {"start": start, "scaler": "hpa:target=1,down_window_s=0,max=3"}
    result = simulate({**BASE, "router": "least-requests", **parts}, trace=many)
    replicas = result.summary["replicas"]
    assert len(replicas) > 1
    assert sum(one["requests"] for one in replicas) == 3000 == result.summary["requests"]["completed"]
    hours = sum(one["up_s"] for one in replicas) / 3600
    assert result.summary["price"]["gpu_hours"] == pytest.approx(hours)
    assert hours < len(replicas) * result.summary["duration_s"] / 3600
    first = result.requests[result.requests["replica"] == 1]["arrival_ns"].min()
    # asked first after 15 s; a start of 3 s, 16 GB of weights at 2 GB/s and 5 s of warm-up
    weights = 2 * 8.03e9 / 2e9
    assert 15 + 3 + weights + 5 - 0.5 < first / SECOND < 15 + 3 + weights + 5 + 15


@pytest.mark.feature("scaling")
def test_a_scenario_with_a_scaler_resolves_to_itself_with_all_parameters() -> None:
    first = set_up(Scenario.of({**BASE, "scaler": "keda:min=0"}), TRACE).scenario
    assert first.scaler is not None
    assert (first.scaler["name"], first.scaler["min"], first.scaler["polling_s"]) == ("keda", 0, 30.0)
    assert set_up(Scenario.of(first.model_dump()), TRACE).scenario == first


@pytest.mark.feature("scaling")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scaler": "hpb"}, "did you mean"),
        ({"scaler": "hpa", "replicas": 9}, "replicas is 9 but must be from 1 to 8"),
        ({"scaler": "hpa", "start": {"node": 1}}, "start: unknown part 'node'"),
        ({"scaler": "hpa", "start": {"weights_gb_s": 0}}, "weights_gb_s is 0"),
        ({"scaler": "hpa", "start": {"node_s": True}}, "start.node_s is 'true'"),
        ({"scaler": "hpa", "start": ""}, "start is ''"),
        ({"scaler": "hpa:sync_s=1e-9"}, "its interval is 1e-09 s"),
        ({"scaler": "hpa:sync_s=2e9"}, r"sync_s is .* but must be at most 1e\+09"),
        ({"scaler": "hpa:max=4097"}, "max is 4097 but must be at most 4096"),
        ({"scheduler": f"vllm:max_num_seqs={2**70}"}, "max_num_seqs is 1180591620717411303424 but must be from -4"),
        ({"start": {"node_s": 1}}, "start has no effect"),
    ],
)
def test_what_cannot_be_scaled_is_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        simulate({**BASE, **settings}, trace=TRACE)


def test_a_log_of_two_models_under_one_is_noted_with_the_way_out(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = "".join(f"{i},100,5,{'a' if i % 3 else 'b'}\n" for i in range(6))
    log.write_text("arrival,prompt_tokens,output_tokens,model\n" + rows, encoding="utf-8")
    settings = {"trace": str(log), "model": "llama-3.2-1b", "gpu": "h200"}
    said = [n for n in simulate(settings, conclude=False).summary["warnings"] if "requests 2 models" in n]
    assert len(said) == 1
    assert "(4 for a, 2 for b), but llama-3.2-1b serves all of them" in said[0]
    one = simulate(settings, shape=["where:model=a"], conclude=False).summary
    assert one["requests"]["arrived"] == 4
    assert not [note for note in one["warnings"] if "models (" in note]


@pytest.mark.feature("scaling")
def test_a_pool_without_a_scaler_has_none_even_if_the_first_has_one() -> None:
    pools = [{"name": "a", "scaler": "keda:target=2"}, {"name": "b"}]
    found = Scenario.of({**BASE, "pools": pools})
    for scenario in (found, Scenario.of(found.model_dump())):
        assert [each.scenario.scaler is None for each in pool_scenarios(scenario)] == [False, True]
