"""Replicas that come and go in experiments: they cost what they were up, and stand beside fixed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import servesim
from servesim import UserError
from servesim.contracts.request import State
from servesim.experiments.axes import Variant
from servesim.experiments.capacity import capacity
from servesim.experiments.capacity_answer import _deployment
from servesim.experiments.capacity_scaled import against_fixed, at_load, cost_of, hour_text, scaled_labels
from servesim.experiments.metrics import METRICS
from servesim.experiments.outcome import Outcome
from servesim.experiments.run_metrics import Run, Slice, measure
from servesim.experiments.variants import price_of

SECOND = 10**9
CALM: dict[str, Any] = {
    "trace": "synth:rate=2,prompt=600,output=40",
    "requests": 120,
    "model": "llama-3.2-1b",
    "gpu": "l40s",
    "router": "least-requests",
    "slo": "ttft:500",
    "jobs": 1,
    "intervals": False,
}


def run(**scenario: Any) -> Run:
    """A run of 100 s at $36 a GPU hour (1 cent a second): replica 0 is up all the time, replica 1 from 50 to 80 s."""
    replicas = [
        {"replica": 0, "pool": "default", "up_from_s": 0.0, "up_s": 100.0},
        {"replica": 1, "pool": "default", "up_from_s": 50.0, "up_s": 30.0},
    ]
    pools = {"default": {"gpu": "h100", "usd": 1.30, "gpu_hours": 130 / 3600}}
    settings = {"tp": 1, "pp": 1, "replicas": 1, "usd_per_gpu_hour": 36.0, **scenario}
    arrival = np.array([7.0, 57.0, 107.0]) * SECOND  # the run begins with the first arrival, at 7 s of the clock
    columns = {
        "row": np.arange(3.0),
        "arrival_ns": arrival,
        "first_token_ns": arrival,
        "last_token_ns": arrival,
        "prompt_len": np.full(3, 100.0),
        "output_len": np.ones(3),
        "state": np.full(3, float(State.FINISHED)),
    }
    summary = {"scenario": settings, "replicas": replicas, "pools": pools, "requests": {"retries": 0}}
    return Run(summary, columns)


def test_replicas_of_an_autoscaler_cost_the_time_they_were_up_within_the_window() -> None:
    scaled = run(scaler={"name": "hpa"})
    # all of it: 100 s and 30 s at a cent; from 10 s to 60 s: 50 s and 10 s
    assert Slice.of(scaled, 0, 0).usd_per_hour == pytest.approx(1.30 * 36)
    assert Slice.of(scaled, 0.1, 0.4).usd_per_hour == pytest.approx(0.60 * 72)
    tokens = 303
    price = measure(scaled, [METRICS["usd_per_million_tokens"]], 0, 0)["usd_per_million_tokens"]
    assert price == pytest.approx(1.30e6 / tokens)


def test_a_window_pays_for_reserved_gpus_throughout_and_for_others_while_they_are_up() -> None:
    """One GPU is reserved at a cent a second, others cost two: 100 s and 30 s in all; 50 s and 10 s from 10 to 60 s."""
    scaled = run(scaler={"name": "hpa"}, price={"h100": "1@36+72"})
    assert Slice.of(scaled, 0, 0).usd_per_hour == pytest.approx((1.00 + 0.60) * 36)
    assert Slice.of(scaled, 0.1, 0.4).usd_per_hour == pytest.approx((0.50 + 0.20) * 72)
    kept = run(scaler={"name": "hpa"}, price={"h100": "3@36+72"})
    assert Slice.of(kept, 0.1, 0.4).usd_per_hour == pytest.approx(3 * 36)


def test_fixed_replicas_cost_all_the_time_and_a_part_of_the_trace_its_own() -> None:
    assert Slice.of(run(replicas=2), 0, 0).usd_per_hour == pytest.approx(72)
    # the second request's part is from its arrival to the next one: 50 s to 100 s, 50 s and 30 s up
    assert Slice.of(run(scaler={"name": "hpa"}), 0, 0, (1, 2)).usd_per_hour == pytest.approx(0.80 * 72)


def test_a_price_by_name_holds_for_fixed_ones_and_scaled_ones_have_none_before_they_run() -> None:
    plain = {key: value for key, value in CALM.items() if key not in ("jobs", "intervals")}
    assert price_of({**plain, "price": {"l40s": 2.0}, "replicas": 3})["usd_per_hour"] == 6.0
    assert price_of({**plain, "scaler": "hpa"})["usd_per_hour"] is None


def outcome(usd: float, parts: tuple[float, ...] = ()) -> Outcome:
    return Outcome(1, {}, (1.0,), (), (None,), None, (None,), False, None, 0.5, usd, parts)


def test_the_interval_of_a_price_is_over_seeds_or_around_that_of_the_whole_trace() -> None:
    # 2 and 4: mean 3, standard error 1, t of one degree of freedom 12.706; below 0 nothing costs
    found = cost_of([outcome(2.0), outcome(4.0)])
    assert found["usd_per_hour"] == 3.0
    assert found["usd_per_hour_low"] == 0.0
    assert found["usd_per_hour_high"] == pytest.approx(15.706, abs=1e-3)
    whole = cost_of([outcome(30.0, (2.0, 4.0))])
    assert (whole["usd_per_hour"], whole["usd_per_hour_high"]) == (30.0, pytest.approx(42.706, abs=1e-3))
    assert cost_of([outcome(2.0)]) == {"usd_per_hour": 2.0, "usd_per_hour_low": 2.0, "usd_per_hour_high": 2.0}


def test_replicas_sought_are_the_most_of_an_autoscaler_and_the_ones_at_first() -> None:
    assert at_load({}, "replicas", 3) == {"replicas": 3}
    assert at_load({"scaler": "hpa"}, "rate", 3.5) == {"rate": 3.5}
    found = at_load({"scaler": "keda:min=2"}, "replicas", 3)
    assert found["replicas"] == 3
    assert found["scaler"] == {"name": "keda", "min": 2, "max": 3}
    assert at_load({"scaler": {"name": "keda", "min": 4}}, "replicas", 3)["scaler"] == {
        "name": "keda",
        "min": 3,
        "max": 3,
    }


def row(label: str, verdict: str, usd: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {
        "label": label, "verdict": verdict, "usd_per_hour": usd, "usd_per_hour_low": low, "usd_per_hour_high": high,
        "gpus": 4, "gpu": "l40s", "best_attainment": 0.7, "reason": "queueing",
    }  # fmt: skip


def test_scaled_ones_are_told_beside_the_cheapest_fixed_one() -> None:
    fixed = [row("a", "carries", 5.0, None, None), row("b", "carries", 4.0, None, None)]
    scaled = [row("hpa", "carries", 1.0, 0.8, 1.2), row("keda", "carries", 5.0, 4.0, 6.0),
              row("wva", "never", 1.0, 0.9, 1.1)]  # fmt: skip
    assert against_fixed([*fixed, *scaled]) == [
        "hpa costs 75 % less (95 % interval 70 to 80 %) than 4 x L40S all the time",
        "keda costs 25 % more (95 % interval 0 to 50 %) than 4 x L40S all the time",
        "wva at $1.00/h (0.90 to 1.10) instead of $4.00/h for 4 x L40S all the time misses the limits, 70 % at "
        "best: queueing",
    ]
    assert against_fixed(scaled) == []
    assert hour_text(fixed[0]) == "$5.00/h"


@pytest.mark.feature("scaling")
def test_an_idle_autoscaler_pays_for_one_replica_where_peak_capacity_pays_for_two() -> None:
    """Two replicas at first; 300 s of next to no work; the second drains at the first question, after 15 s."""
    settings = {**CALM, "scaler": "hpa:target=5,down_window_s=0,max=2", "replicas": 2}
    document = servesim.compare(
        {key: value for key, value in settings.items() if key not in ("jobs", "intervals", "scaler")},
        scaler=["null", settings["scaler"]], replicates=2, jobs=1, intervals=False,
    ).attrs["document"]  # fmt: skip
    hourly = {v["label"].split(":")[0]: v["usd_per_hour"] for v in document["variants"]}
    assert hourly["scaler=null"] == 2.0
    assert 1.0 <= hourly["scaler=hpa"] < 1.25
    said = [one["verdict"] for one in document["rows"] if one["metric"] == "usd_per_million_tokens"]
    assert "set by the rate" not in said


@pytest.mark.feature("scaling")
def test_capacity_answers_fixed_or_scaled_in_a_sentence() -> None:
    frame = capacity(**CALM, scaler=["null", "hpa:target=5,down_window_s=0"], rate=2, replicates=2)
    document = frame.attrs["document"]
    fixed, scaled = document["rows"]
    assert fixed["usd_per_hour_low"] is None
    assert fixed["usd_per_hour"] == 1.0
    assert scaled["verdict"] == "carries"
    assert "scaler=hpa:target=5,down_window_s=0 costs as much as 1 x L40S all the time" in document["answer"]


@pytest.mark.feature("scaling")
def test_a_queue_that_grows_with_two_replicas_of_an_autoscaler_gets_more() -> None:
    """One at a time, a replica serves about 28 a second. All shares are 1, and the queue of 1 and of 2 grows."""
    asked = {"trace": "synth:prompt=300,output=30", "model": "llama-3.2-1b", "gpu": "h200", "rate": 150}
    flags = {"scheduler": "vllm:max_num_seqs=1", "requests": 400, "slo": "tpot:p99<20ms", "max_replicas": 32}
    frame = capacity(**asked, **flags, scaler="keda:target=1,min=1", replicates=1, jobs=1, intervals=False)
    assert 5 <= frame.attrs["document"]["rows"][0]["replicas"] <= 8


@pytest.mark.feature("scaling")
def test_the_most_of_an_autoscaler_is_sought_and_not_given() -> None:
    with pytest.raises(UserError, match="the autoscaler's max cannot be combined with --rate"):
        capacity(**CALM, scaler="hpa:max=3", rate=2)


@pytest.mark.feature("scaling")
def test_deployments_with_an_autoscaler_are_known_in_pools_too() -> None:
    base = {"trace": "synth:rate=2,prompt=6,output=4", "model": "llama-3.2-1b", "gpu": "l40s"}
    pools = [{"name": "one"}, {"name": "other", "scaler": "hpa"}]
    variants = [
        Variant("fixed", {}, base),
        Variant("scaled", {}, {**base, "scaler": "keda"}),
        Variant("pools", {}, {**base, "pools": pools}),
        Variant("wrong", {}, {**base, "tp": -1, "scaler": "keda"}),
    ]
    assert scaled_labels(variants) == {"scaled", "pools"}


@pytest.mark.parametrize(
    ("axes", "gpus", "replicas", "low", "said"),
    [
        ({"dtype": "fp8", "tp": 4}, 8, 2, None, "8 x H200 in fp8 (2 replicas of 4 GPUs)"),
        ({"tp": 4}, 4, 1, None, "4 x H200 (tp=4)"),
        ({"tp": 1}, 2, 2, None, "2 x H200 (tp=1)"),
        ({}, 2, 2, None, "2 x H200"),
        ({"scaler": "hpa"}, 2, 2, 1.0, "2 x H200 (at most, by hpa)"),
        ({"engine.max_num_seqs": 8}, 1, 1, 1.0, "1 x H200 (engine.max_num_seqs=8, at most)"),
    ],
)
def test_a_deployment_is_said_in_gpus_and_replicas(
    axes: dict[str, Any], gpus: int, replicas: int, low: float | None, said: str
) -> None:
    row = {"axes": axes, "gpus": gpus, "replicas": replicas, "gpu": "h200", "usd_per_hour_low": low}
    assert _deployment(row) == said
