"""`servesim capacity`: the highest rate within an SLO, and the cheapest deployment for a rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import servesim
from servesim import UserError
from servesim.experiments.axes import product
from servesim.experiments.capacity import capacity
from servesim.experiments.capacity_answer import never_text
from servesim.experiments.goals import goals_of, header
from servesim.experiments.idle import Alone
from servesim.experiments.limit_search import RateSearch
from servesim.experiments.objects import Objects
from servesim.experiments.run_metrics import Run
from servesim.experiments.smallest_tp import with_smallest_tp
from servesim.run.replica_search import ReplicaSearch
from servesim.run.scenario import Scenario
from servesim.run.trace_source import open_scenario

WORKLOAD: dict[str, Any] = {
    "trace": "synth:rate=1,prompt=600,output=20",
    "requests": 60,
    "model": "llama-3.2-1b",
    "slo": "ttft:40",
    "jobs": 1,
    "intervals": False,  # they have tests of their own
}


@given(st.floats(1e-3, 1e4), st.floats(0.01, 0.2))
def test_a_rate_search_brackets_the_limit_within_its_tolerance(limit: float, tolerance: float) -> None:
    search = RateSearch(tolerance)
    tried = []
    while (rate := search.next()) is not None:
        tried.append(rate)
        search.tell(rate, rate <= limit)
    assert search.low <= limit < search.high
    assert search.high / search.low <= 1 + tolerance + 2e-3  # four digits
    assert len(tried) == len(set(tried)) <= 40


def test_a_rate_search_gives_up_where_there_is_no_limit() -> None:
    for carried in (True, False):
        search = RateSearch(0.02)
        while (rate := search.next()) is not None:
            search.tell(rate, carried)
        assert (search.low > 0, search.high < float("inf")) == (carried, not carried)


def test_a_rate_that_fails_below_one_that_passed_is_the_limit() -> None:
    search = RateSearch(0.02)
    for rate, carried in ((1.0, True), (2.0, True), (4.0, False), (1.5, False)):
        search.tell(rate, carried)
    assert (search.low, search.high) == (1.0, 1.5)


@given(st.integers(1, 80), st.integers(1, 64))
def test_a_replica_search_finds_the_fewest(needed: int, most: int) -> None:
    search = ReplicaSearch(most)
    while (n := search.next()) is not None:
        search.tell(n, n >= needed)
    assert search.fewest == search.found == (needed if needed <= most else None)


def test_steps_that_begin_with_the_guess_double_it() -> None:
    search, tried = ReplicaSearch(64, 3, step=3), []
    while (n := search.next()) is not None:
        tried.append(n)
        search.tell(n, n >= 13)
    assert tried == [3, 6, 12, 24, 18, 15, 13]


@pytest.mark.medium
def test_the_highest_rate_comes_with_an_interval_and_what_it_costs(tmp_path: Path) -> None:
    frame = servesim.capacity(**WORKLOAD, gpu="h200,l40s", replicates=2, tolerance=0.1, out=tmp_path)
    assert list(frame["verdict"]) == ["carries", "carries"]
    assert (frame["rate_low"] <= frame["rate"]).all()
    assert (frame["rate"] < frame["rate_high"]).all()
    assert frame["rate"].iloc[0] > 2 * frame["rate"].iloc[1]
    assert (frame["attainment"] >= 0.99).all()
    document = json.loads((tmp_path / "capacity.json").read_text())
    points = pd.read_parquet(tmp_path / "capacity.parquet")
    assert len(points) == len(document["points"]) == points["address"].nunique()
    others = {cell.name for cell in (tmp_path / "cells").iterdir()} - {*points["address"]}
    lengths = [json.loads((tmp_path / "cells" / name / "summary.json").read_text())["requests"] for name in others]
    alone = [each for each in lengths if each["max_concurrency"] == 1]
    assert len(alone) == 2  # a run of requests alone by deployment: all prompts of all seeds are alike
    checks = [each["arrived"] for each in lengths if each["max_concurrency"] > 1]
    assert {*checks} == {*frame["checked_requests"]}
    tried = points[points["label"] == "h200"].groupby("rate")["attainment"].mean()
    assert tried[frame["rate"].iloc[0]] >= 0.99
    assert tried[tried.index > frame["rate"].iloc[0]].min() < 0.99


def test_the_cheapest_deployment_is_the_smallest_that_carries_the_rate_at_the_lowest_price() -> None:
    frame = capacity(**WORKLOAD, gpu="h200,l40s", rate=60, replicates=2)
    by_gpu = frame.set_index("gpu")
    assert by_gpu.loc["l40s", "replicas"] > by_gpu.loc["h200", "replicas"] >= 1
    assert (frame["usd_per_hour"] == frame["gpus"] * frame["gpu"].map({"h200": 3.8, "l40s": 1.0})).all()
    assert frame[frame["cheapest"]]["usd_per_hour"].tolist() == [frame["usd_per_hour"].min()]
    fewer = by_gpu.loc["l40s", "replicas"] - 1
    tried = [p for p in frame.attrs["document"]["points"] if p["label"] == "l40s" and p["replicas"] == fewer]
    assert sum(p["attainment"] for p in tried) / 2 < 0.99


def test_deployments_that_cannot_be_are_named_and_the_rest_answered() -> None:
    asked = WORKLOAD | {"model": "llama-3.1-70b", "dtype": "fp8", "slo": "ttft:2000"}
    frame = capacity(**asked, gpu="l40s,h200", tp=1, replicates=1, tolerance=0.2)
    assert list(frame["verdict"]) == ["failed", "carries"]
    assert "l40s failed" in frame.attrs["document"]["warnings"][0]


def test_a_model_too_large_for_one_gpu_gets_the_smallest_tp_that_fits_and_one_line_says_so() -> None:
    asked = WORKLOAD | {"model": "llama-3.1-70b", "slo": "ttft:2000"}
    frame = capacity(**asked, gpu="h100", replicates=1, tolerance=0.2)
    assert frame[["gpus", "verdict"]].to_numpy().tolist() == [[2, "carries"]]
    assert frame.attrs["document"]["warnings"][0] == (
        "one GPU has no room for the model, so the smallest tp that fits is used: --tp 2 for llama-3.1-70b on h100; "
        "give --tp 2,4,8 to compare with more"
    )
    assert "(tp=2)" in frame.attrs["document"]["answer"]


def test_each_gpu_gets_a_tp_of_its_own_and_a_model_that_fits_none() -> None:
    named = product({"model": "llama-3.1-70b", "trace": "synth:rate=1"}, {"gpu": "l40s,h200", "dtype": "bf16,fp8"})
    found, (said,) = with_smallest_tp(named)
    assert [v.settings.get("tp") for v in found] == [4, 2, 2, None]
    assert "--tp 4 for l40s / dtype=bf16, --tp 2 for l40s / dtype=fp8, --tp 2 for h200 / dtype=bf16; give " in said
    assert with_smallest_tp(product({"model": "llama-3.1-405b", "gpu": "l40s"}, {}))[1] == []


def test_a_given_tp_that_is_too_small_is_kept_and_the_error_names_the_flag_that_fits() -> None:
    asked = WORKLOAD | {"model": "llama-3.1-70b", "gpu": "l40s", "replicates": 1}
    frame = capacity(**asked, tp=2)
    error = frame["error"].iloc[0]
    assert "no KV block fits (try --tp 4, --dtype fp8, --ignore-memory)" in error
    answer = frame.attrs["document"]["answer"]
    assert answer == f"The deployment failed ({error}), and none is known to sustain any rate"


@pytest.mark.medium
def test_a_limit_nothing_meets_and_a_trace_that_fills_nothing_are_said() -> None:
    never = capacity(**WORKLOAD | {"slo": "ttft:1"}, gpu="h200", replicates=1)
    assert list(never["verdict"]) == ["never"]
    assert never["best_attainment"].tolist() == [0.0]
    assert never.attrs["document"]["points"] == []  # no load is tried that cannot change the answer
    assert "wait longer than 1 ms for their first token on an idle server" in never["reason"].iloc[0]
    assert never.attrs["document"]["answer"].startswith(
        "No deployment sustains any rate; the deployment comes closest, with at most 0 %"
    )
    endless = capacity(**WORKLOAD | {"requests": 9, "slo": "ttft:60000"}, gpu="h200", replicates=1)
    assert list(endless["verdict"]) == ["no limit"]
    assert any("increase --requests" in note for note in endless.attrs["document"]["warnings"])
    nobody = capacity(**WORKLOAD | {"requests": 2}, gpu="h200", replicates=1)
    assert "no request arrives in the steady window" in nobody["error"].iloc[0]


@pytest.mark.parametrize("told", [{"by_formula": True}, {"kernel_tables": "roofline"}])
def test_a_gpu_without_tables_is_answered_when_told(told: dict[str, Any]) -> None:
    frame = capacity(**WORKLOAD | {"requests": 40}, gpu="l4", replicates=1, tolerance=0.5, **told)
    assert frame["gpu"].tolist() == ["l4"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slo": {}}, "specify an SLO"),
        ({"slo.ttft": "40,50"}, "specify only one SLO"),
        ({"rate": "1,2"}, "specify one rate to find"),
        ({"rate": 1, "replicas": "1,2"}, "--replicas cannot be combined with --rate"),
        ({"attainment": 1.5}, "attainment is 1.5"),
        ({"tolerance": 0}, "tolerance is 0"),
        ({"max_replicas": 0}, "max_replicas is 0"),
        ({"window": 5}, "window applies only to recorded traces"),
        ({"window_minutes": 0}, "window_minutes is 0"),
        ({"gpu": "h200,rtx-4090"}, "rtx-4090 has no kernel tables.*--by-formula"),
        ({"slo": "ttft:p99<1s", "slo_classes": {"gold": "ttft:p0<5"}}, "ttft:p0 is not a percentile"),
    ],
)
def test_questions_without_an_answer_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        capacity(**(WORKLOAD | {"gpu": "h200"} | changes))


MIXED = WORKLOAD | {"trace": "synth:rate=1,prompt=lognormal(600,6000),output=20", "requests": 200, "gpu": "h200"}
SERVED = {key: value for key, value in MIXED.items() if key not in ("jobs", "intervals")}
ONE = """
from servesim.contracts.router import Router
class One(Router):
    def route(self, request, views):
        return 0
"""


def test_alone_few_tokens_say_as_much_as_all() -> None:
    scenario = Scenario.of(SERVED)
    trace, goals = open_scenario(scenario), goals_of(scenario, 0.99)
    reduced, whole = Alone.reduced(trace, goals, SERVED), Alone.whole(trace)
    assert reduced.trace.output_len.sum() < whole.trace.output_len.sum() / 2
    columns = []
    for alone in (reduced, whole):
        settings = alone.settings(SERVED, Objects())
        result = servesim.simulate({k: v for k, v in settings.items() if k != "trace"}, trace=alone.trace)
        run = alone.measured(run_of(result), goals)
        assert run is not None
        columns.append(run.columns["ttft_ns"])
    assert np.abs(columns[0] - columns[1]).max() <= 1  # ns


def run_of(result: servesim.Result) -> Run:
    frame = result.requests.sort_values("row")
    columns = {name: frame[name].to_numpy(dtype=float) for name in frame.columns if frame[name].dtype.kind in "if"}
    return Run(result.summary, columns)


@pytest.mark.feature("view_lag")
def test_a_server_that_serves_each_request_alone_reports_to_no_router() -> None:
    """Requests are hours apart, and llm-d's router would poll 20 times a second."""
    settings = {**SERVED, "router": "llm-d", "trace": "synth:rate=1,prompt=300,output=30", "requests": 10}
    trace = open_scenario(Scenario.of(settings))
    alone = Alone.reduced(trace, goals_of(Scenario.of(settings), 0.99), settings)
    served = {key: value for key, value in alone.settings(settings, Objects()).items() if key != "trace"}
    assert "router_view" in servesim.simulate(settings).summary
    assert "router_view" not in servesim.simulate(served, trace=alone.trace).summary


def test_no_number_of_replicas_beats_an_idle_server() -> None:
    best = capacity(**MIXED | {"slo": "ttft:60"}, rate=20, replicates=2, warmup=0, cooldown=0).iloc[0]
    assert best["verdict"] == "never"
    many = [servesim.simulate(SERVED | {"slo": "ttft:60"}, rate=20, replicas=200, seed=seed) for seed in (0, 1)]
    shares = [result.summary["goodput"]["slo_attainment"] for result in many]
    assert best["best_attainment"] == pytest.approx(sum(shares) / 2)
    edge = int(best["reason"].split("over ")[1].split(" ")[0].replace(",", ""))
    longer = [result.requests["prompt_len"] > edge for result in many]
    late = [result.requests["ttft_ns"] > 60e6 for result in many]
    assert (longer[0] == late[0]).all() or (longer[1] == late[1]).all()


def test_further_replicas_are_not_tried_where_doubling_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    asked = WORKLOAD | {"gpu": "l40s", "router": f"{tmp_path / 'one.py'}:One"}
    found = capacity(**asked, rate=200, replicates=1, max_replicas=64)
    assert found["verdict"].tolist() == ["never"]
    tried = {p["replicas"] for p in found.attrs["document"]["points"]}
    assert 1 < max(tried) < 64
    row = found.attrs["document"]["rows"][0]
    assert never_text(row).startswith(
        f"{100 * row['best_attainment']:.4g} % at best, with {row['best_at']:g} or more replicas"
    )


def test_the_answer_is_one_sentence() -> None:
    frame = capacity(**WORKLOAD, gpu="h200,l40s", rate=60, replicates=2, price="h200=3.8,l40s=0.5")
    document, best = frame.attrs["document"], frame[frame["cheapest"]].iloc[0]
    other = frame[~frame["cheapest"]].iloc[0]
    saving = 100 * (1 - best["usd_per_hour"] / other["usd_per_hour"])
    assert document["answer"].startswith(f"Take {best['gpus']} x {best['gpu'].upper()}")
    assert f"${best['usd_per_hour']:.2f}/h, {saving:.0f} % less than the next" in document["answer"]


def test_limits_hold_each_by_themselves_where_they_have_percentiles() -> None:
    frame = capacity(**WORKLOAD | {"slo": "ttft:p50<40ms,tpot:p99<30ms"}, gpu="h200", rate=60, replicates=2)
    goals = frame.attrs["document"]["settings"]["goals"]
    assert [goal["text"] for goal in goals] == [
        "50 % of requests within TTFT 40 ms",
        "99 % of requests within TPOT 30 ms",
    ]
    joint = capacity(**WORKLOAD | {"slo": "ttft<40ms,tpot<30ms"}, gpu="h200", rate=60, replicates=2)
    assert frame["replicas"].iloc[0] <= joint["replicas"].iloc[0]
    assert header(goals).endswith("(each by itself)")
    assert header(joint.attrs["document"]["settings"]["goals"]).endswith("(jointly)")


def test_a_search_near_its_start_takes_steps_that_widen() -> None:
    search, tried = RateSearch(0.1, 4.0, 1.25), []
    while (rate := search.next()) is not None:
        tried.append(rate)
        search.tell(rate, rate <= 1.5)
    assert tried[:4] == [4.0, 3.2, 2.048, 1.024]  # down by 1.25, its square, and 2 at most
    assert search.low <= 1.5 < search.high <= 1.1 * search.low


def test_an_answer_from_runs_too_short_to_tell_names_the_length_that_would() -> None:
    """60 requests of some 60 ms at the rate carried span less than a second."""
    document = capacity(**WORKLOAD, gpu="h200", replicates=2).attrs["document"]
    (row,) = document["rows"]
    assert row["enough_requests"] > 60
    (note,) = [note for note in document["warnings"] if "too short to tell" in note]
    assert note.endswith(f"; --requests {row['enough_requests']} would be enough")
    long = capacity(**WORKLOAD | {"requests": 3000, "slo": "ttft:400"}, gpu="h200", replicates=1, tolerance=0.2)
    (row,) = long.attrs["document"]["rows"]
    assert row["enough_requests"] is None
    assert not [note for note in long.attrs["document"]["warnings"] if "too short to tell" in note]


def test_a_queue_that_grows_is_named_as_what_limits() -> None:
    """No request misses an hour: only the queue limits the rate."""
    asked = WORKLOAD | {"requests": 2000, "slo": "ttft:3600000"}
    document = capacity(**asked, gpu="h200", replicates=1, tolerance=0.2).attrs["document"]
    (row,) = document["rows"]
    assert row["verdict"] == "carries"
    assert row["binds"] == "a queue that keeps growing"
    assert document["answer"].endswith("the limiting factor is a queue that keeps growing")
