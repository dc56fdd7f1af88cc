"""The benchmarks measure what they say."""

from __future__ import annotations

import json

import pytest

from benchmarks.cases import BASE, CASES
from benchmarks.measure import Meter, in_own_process, measure
from benchmarks.table import GROUPS, RESULTS, row, series
from servesim.run.scenario import Scenario

STORED = json.loads(RESULTS.read_text())


NEEDS = {"dp-2": ["data_parallel"], "pd-1p1d": ["handoff"]}
"""Features whose settings a case names."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.feature(each) for each in NEEDS.get(name, ())]) for name in CASES]
)
def test_every_case_is_a_scenario(name: str) -> None:
    Scenario.of({"trace": "file", **BASE, **CASES[name].settings})


def test_what_is_stored_covers_the_quick_cases_and_names_no_place() -> None:
    assert {name for name, case in CASES.items() if case.group == "quick"} <= set(STORED["cases"])
    assert "/" not in RESULTS.read_text()


def test_a_case_of_few_requests_is_measured_and_fits_the_table() -> None:
    figures = measure("quick-conv", requests=20, repeats=1)
    assert figures["requests"] == 20
    assert figures["steps"] > 20
    assert 0 < figures["loop_cpu_s"] < figures["total_cpu_s"]
    assert row("quick-conv", CASES["quick-conv"], figures).startswith("quick-conv              20")


def test_a_fresh_process_measures_the_same_run() -> None:
    figures = in_own_process("quick-conv", requests=20, repeats=1)
    assert (figures["requests"], figures["steps"]) == (20, measure("quick-conv", requests=20, repeats=1)["steps"])


def test_instructions_are_counted_or_the_reason_is_told() -> None:
    meter = Meter()
    meter.start()
    sum(range(60_000))
    meter.stop()
    assert meter.reason if meter.instructions is None else meter.instructions > 6_000


def test_a_series_tells_its_dearest_over_its_cheapest() -> None:
    def run(steps: int, seconds: float) -> dict[str, float | None]:
        return {"steps": steps, "requests": 1, "loop_cpu_s": seconds, "loop_instructions": None}

    lines = series({"batch-16": run(100, 1.0), "batch-64": run(100, 3.0), "linear-10k": run(1, 1.0)})
    assert lines == ["batch: dearest over cheapest per step: CPU s 3.00x; at most 2.0x"]
    assert "quick" in GROUPS
