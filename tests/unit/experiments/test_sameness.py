"""Variants whose results are equal are called so, and what else than the policy differs is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import servesim
from servesim.cli.tables import print_compare, print_sweep
from servesim.experiments.sameness import warnings_of
from servesim.reports.export import export

WORKLOAD: dict[str, Any] = {
    "trace": "synth:arrivals=poisson,rate=8,prompt=200,output=20",
    "requests": 40,
    "model": "llama-3.2-1b",
    "gpu": "h200",
    "kv": "paged",
    "jobs": 1,
}


def words(*said: str) -> str:
    return " ".join(" ".join(said).split())


def test_settings_that_change_nothing_are_one_result_in_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    axes = {"scheduler.max_num_seqs": [1, 64, 128]}
    document = servesim.sweep(**WORKLOAD, **axes).attrs["document"]
    names = [v["label"] for v in document["variants"]]
    assert [v["equal_to"] for v in document["variants"]] == [None, None, names[1]]
    [group] = document["equal"]
    assert group["labels"] == names[1:]
    assert group["why"].startswith("at most ")
    assert group["why"].endswith("ran at once")
    assert (document["best"]["label"], document["best"]["equal"]) == (names[1], [names[2]])
    print_sweep(document, None, verbose=True)
    printed = words(capsys.readouterr().out)
    assert f"= {names[1]}" in printed
    assert "are equal in every request, so the difference has no effect: at most " in printed


def test_equal_latencies_at_another_price_are_another_result() -> None:
    document = servesim.sweep(**WORKLOAD, **{"gpu.usd_per_hour": [1, 2]}).attrs["document"]
    assert document["equal"] == []


def test_a_comparison_of_equals_says_why_they_are() -> None:
    document = servesim.compare(**WORKLOAD, scheduler=["vllm", "vllm:max_num_seqs=90"], replicates=2).attrs["document"]
    [sentence] = document["headline"]
    assert sentence.startswith(
        "vllm:max_num_seqs=90 and vllm are equal in every request, so the difference has no effect: at most "
    )


def test_budgets_and_planning_that_differ_are_the_first_warnings_of_a_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = servesim.compare(**WORKLOAD, scheduler=["vllm", "sarathi"], replicates=2).attrs["document"]
    budget, planning, _ = document["warnings"]
    assert budget.startswith("token budgets per step differ (vllm 8,192, sarathi 512)")
    assert planning.startswith("sarathi schedules synchronously while the others schedule one step ahead. ")
    print_compare(document, None)
    printed = words(capsys.readouterr().out)
    assert (
        printed.index("TTFT mean")
        < printed.index("warning: token budgets")
        < printed.index("warning: sarathi schedules")
    )


def variant(label: str, budget: int | None, **axes: str) -> dict[str, Any]:
    return {"label": label, "axes": axes, "max_num_batched_tokens": budget, "asynchronous": True}


@pytest.mark.parametrize(
    ("budgets", "axes", "warned"),
    [
        ((512, 8192), {"scheduler": "vllm"}, True),
        ((512, 512), {"scheduler": "vllm"}, False),
        ((512, None), {"scheduler": "static"}, False),  # a scheduler without a budget has nothing to differ in
        ((512, 8192), {"scheduler.max_num_batched_tokens": "512"}, False),  # asked for
        ((512, 8192), {"scheduler": "sarathi:chunk_size=512"}, False),
    ],
)
def test_a_budget_is_warned_of_where_nobody_asked_for_it(budgets: Any, axes: dict[str, str], warned: bool) -> None:
    found = warnings_of([variant("a", budgets[0], **axes), variant("b", budgets[1], **axes)])
    assert bool(found) is warned


def test_a_price_per_token_at_a_fixed_rate_is_no_finding() -> None:
    def verdicts(**more: Any) -> tuple[str, list[str]]:
        given = {**WORKLOAD, "metrics": "usd_per_million_tokens", "rank_by": "usd_per_million_tokens", **more}
        document = servesim.compare(**given, replicates=3).attrs["document"]
        notes = [note for note in document["notes"] if note.startswith("price per token")]
        return document["rows"][1]["verdict"], notes

    policies = ["vllm", "sarathi"]
    verdict, notes = verdicts(scheduler=policies)
    assert verdict == "set by the rate"
    assert len(notes) == 1
    assert "servesim capacity" in notes[0]
    # twice the GPUs cost more, and requests that come when one has ended are served the sooner the better
    assert verdicts(tp=[1, 2])[0] != "set by the rate"
    assert verdicts(scheduler=policies, **{"clients.max_concurrency": 4}, rate="inf")[0] != "set by the rate"


def test_the_scenario_a_run_wrote_is_compared_with_a_measurement(tmp_path: Path) -> None:
    run = {**WORKLOAD, "requests": None}
    run.pop("jobs")
    servesim.simulate(run, requests=40, out=tmp_path / "run")
    scenario = tmp_path / "run" / "scenario.yaml"
    text = scenario.read_text().replace("requests: 40", "requests: null")
    assert "requests: null" in text
    scenario.write_text(text)
    bench = tmp_path / "bench.json"
    export(tmp_path / "run", "vllm-bench", bench)
    slow = servesim.compare(scenario, bench, jobs=1, dtype="fp32").attrs["document"]
    row = next(row for row in slow["rows"] if row["metric"] == "tpot_mean" and row["variant"] != "measured")
    assert row["verdict"] == "too slow"
    fast = servesim.compare(scenario, bench, jobs=1, dtype="fp8", rank_by="tpot_mean").attrs["document"]
    assert fast["headline"][0].startswith("simulated is too fast by ")
    same = servesim.compare(scenario, bench, jobs=1).attrs["document"]
    assert {row["verdict"] for row in same["rows"]} <= {"baseline", "equivalent", "identical", "undecided"}
