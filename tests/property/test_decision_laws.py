"""Metamorphic laws of decisions: a change to a question moves its answer in one direction only, or not at all."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import servesim
from servesim.experiments.capacity import capacity
from servesim.experiments.worth import worth
from servesim.traces import load_trace

SERVER: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h200", "kv": "paged"}
SYNTH = "synth:rate=40,prompt=lognormal(400,1200),output=lognormal(30,80)"
ASKED: dict[str, Any] = {
    **SERVER,
    "trace": SYNTH,
    "requests": 80,
    "slo": "ttft:60,tpot:20",
    "jobs": 1,
    "replicates": 2,
    "intervals": False,
    "tolerance": 0.1,
}
SLOW = "vllm:max_num_seqs=3"


def rows_of(**changes: Any) -> list[dict[str, Any]]:
    return list(capacity(**ASKED | changes).attrs["document"]["rows"])


def rate(**changes: Any) -> float:
    (row,) = rows_of(**changes)
    return float(row["rate"] or 0.0)


def test_a_looser_slo_never_lowers_the_rate_carried() -> None:
    rates = [rate(slo=f"ttft:{limit},tpot:20") for limit in (35, 60, 200)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_smaller_share_never_lowers_the_rate_carried() -> None:
    rates = [rate(attainment=share) for share in (0.99, 0.9, 0.5)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_a_finer_grid_answers_within_the_coarser_one_s_interval() -> None:
    (coarse,), (fine,) = rows_of(tolerance=0.2), rows_of(tolerance=0.02)
    assert fine["rate"] >= coarse["rate"]
    assert coarse["rate_low"] <= fine["rate"] <= coarse["rate_high"]


def test_other_seeds_and_longer_runs_give_intervals_that_meet() -> None:
    found = [rows_of(seed=seed, requests=n)[0] for seed in (0, 100) for n in (80, 300)]
    assert max(row["rate_low"] for row in found) <= 1.1 * min(row["rate_high"] for row in found)


def test_two_replicas_carry_at_least_what_one_does_twice() -> None:
    one, two = rate(requests=120), rate(requests=240, replicas=2, router="least-outstanding")
    assert 2 * one * 0.9 <= two


def test_a_higher_rate_never_needs_fewer_replicas() -> None:
    needed = [rows_of(rate=wanted)[0]["replicas"] for wanted in (20, 100, 300)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_a_price_changes_the_cost_alone_and_in_proportion() -> None:
    (cheap,), (dear,) = rows_of(rate=100, price="h200=2"), rows_of(rate=100, price="h200=6")
    assert cheap["replicas"] == dear["replicas"]
    assert dear["usd_per_hour"] == pytest.approx(3 * cheap["usd_per_hour"])


def test_a_gpu_that_gets_cheaper_stays_the_cheapest() -> None:
    def cheapest(price: str) -> str:
        rows = rows_of(rate=100, gpu="h200,l40s", price=price)
        return str(next(row["gpu"] for row in rows if row["cheapest"]))

    first = cheapest("h200=3,l40s=1")
    other = {"h200", "l40s"} - {first}
    assert cheapest(",".join([f"{first}=0.5", *(f"{name}=3" for name in other)])) == first
    assert cheapest(",".join([f"{first}=1000", *(f"{name}=0.1" for name in other)])) != first


def test_another_deployment_asked_about_and_the_order_change_no_row() -> None:
    def by_gpu(gpus: str) -> dict[str, Any]:
        return {
            row["gpu"]: (row["rate"], row["rate_low"], row["rate_high"], row["verdict"]) for row in rows_of(gpu=gpus)
        }

    both = by_gpu("h200,l40s")
    assert by_gpu("l40s,h200") == both
    assert by_gpu("h200") == {"h200": both["h200"]}


def changes_of(baseline: str, other: str, **more: Any) -> dict[str, dict[str, Any]]:
    asked = {**SERVER, "trace": SYNTH, "requests": 60, "jobs": 1, "replicates": 6, "intervals": False, **more}
    rows = servesim.compare(**asked, scheduler=[baseline, other]).attrs["document"]["rows"]
    return {row["metric"]: row for row in rows if row["variant"] == other}


def test_a_comparison_turned_around_turns_its_verdicts_around() -> None:
    there, back = changes_of("vllm", SLOW), changes_of(SLOW, "vllm")
    turned = {"better": "worse", "worse": "better"}
    for name, row in there.items():
        assert turned.get(row["verdict"], row["verdict"]) == back[name]["verdict"], name
        if row["scale"] == "ratio" and row["change"] is not None:
            assert (1 + row["change"]) * (1 + back[name]["change"]) == pytest.approx(1), name


def test_a_variant_more_changes_no_value_of_the_others() -> None:
    asked = {**SERVER, "trace": SYNTH, "requests": 60, "jobs": 1, "replicates": 6, "intervals": False}

    def values(*schedulers: str) -> dict[str, Any]:
        rows = servesim.compare(**asked, scheduler=list(schedulers)).attrs["document"]["rows"]
        return {row["metric"]: (row["value"], row["change"]) for row in rows if row["variant"] == SLOW}

    assert values("vllm", SLOW) == values("vllm", SLOW, "sjf")


def test_a_policy_under_another_spelling_is_identical() -> None:
    found = changes_of("vllm", "vllm:max_num_seqs=256")
    assert {row["verdict"] for row in found.values()} <= {"identical", "equivalent", "set by the rate"}


def test_a_dominated_variant_leaves_the_front_as_it_was() -> None:
    def front(gpus: str) -> set[str]:
        found = servesim.sweep(
            **SERVER | {"gpu": gpus}, trace=SYNTH, requests=120, rate=[20], jobs=1, price="h200=1,l40s=90"
        )
        return {v["axes"].get("gpu", "h200") for v in found.attrs["document"]["variants"] if v["pareto"]}

    assert front("h200,l40s") == {"h200"}


def test_what_a_feature_is_worth_does_not_depend_on_the_price_of_an_hour() -> None:
    def found(price: str) -> list[Any]:
        rows = worth(of="fp8", **ASKED | {"price": price}).attrs["document"]["rows"]
        return [(row["rate"], row["rate_low"], row["rate_high"], row["cheapest"]) for row in rows]

    assert found("h200=2") == found("h200=6")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rng = np.random.default_rng(7)
    table = pd.DataFrame(
        {
            "timestamp": np.round(1_700_000_000 + np.cumsum(rng.exponential(0.5, 80)), 6),
            "prompt_tokens": rng.integers(5, 900, 80),
            "completion_tokens": rng.integers(1, 90, 80),
            "user": [f"u{i % 5}" for i in range(80)],
        }
    )
    table.to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def read(path: Path, **options: Any) -> tuple[list[int], list[int], list[int]]:
    trace = load_trace(path, **options)
    return trace.arrival_ns.tolist(), trace.prompt_len.tolist(), trace.output_len.tolist()


def changed(path: Path, edit: Any) -> Path:
    table = edit(pd.read_csv(path))
    table.to_csv(path.with_name("other.csv"), index=False, quoting=csv.QUOTE_MINIMAL)
    return path.with_name("other.csv")


def test_the_order_of_a_log_s_rows_does_not_matter(log: Path) -> None:
    assert read(changed(log, lambda t: t.sample(frac=1, random_state=1))) == read(log)


def test_the_order_of_a_log_s_columns_and_columns_of_no_meaning_do_not_matter(log: Path) -> None:
    assert read(changed(log, lambda t: t[t.columns[::-1]].assign(note="x"))) == read(log)


def test_a_column_s_name_does_not_matter_once_it_is_given(log: Path) -> None:
    renamed = changed(log, lambda t: t.rename(columns={"timestamp": "when", "prompt_tokens": "size"}))
    assert read(renamed, columns="arrival=when,prompt=size,output=completion_tokens") == read(log)


def test_a_clock_that_is_shifted_changes_no_arrival(log: Path) -> None:
    shifted = read(changed(log, lambda t: t.assign(timestamp=t["timestamp"] - 86_400 * 30)))
    assert np.abs(np.array(shifted[0]) - read(log)[0]).max() <= 1000  # floats of epoch seconds
    assert shifted[1:] == read(log)[1:]


def test_milliseconds_and_dates_give_the_arrivals_that_seconds_give(log: Path) -> None:
    seconds = np.array(read(log)[0])
    ms = read(changed(log, lambda t: t.assign(timestamp=(t["timestamp"] * 1000).round(3))))
    iso = read(
        changed(log, lambda t: t.assign(timestamp=pd.to_datetime(t["timestamp"], unit="s", utc=True).astype(str)))
    )
    for other in (ms, iso):
        assert np.abs(np.array(other[0]) - seconds).max() <= 2000


def test_the_first_half_of_a_log_is_the_first_half_of_its_trace(log: Path) -> None:
    half = read(changed(log, lambda t: t.iloc[:40]))
    assert half == tuple(column[:40] for column in read(log))
