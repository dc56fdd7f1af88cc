"""The benchmarks measure what they say, and CI compares like with like."""

from __future__ import annotations

import json

import pytest

from benchmarks.cases import BASE, CASES
from benchmarks.check import MOST, dearer
from benchmarks.measure import Meter, calibrate, measure
from benchmarks.table import GROUPS, RESULTS, row, series
from servesim.run.scenario import Scenario

STORED = json.loads(RESULTS.read_text())


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_scenario(name: str) -> None:
    Scenario.of({"trace": "file", **BASE, **CASES[name].settings})


def test_a_machine_half_as_fast_is_no_slower() -> None:
    before = {"requests": 100, "loop_cpu_s": 1.0, "calibration_cpu_s": 0.05}
    assert dearer({"requests": 100, "loop_cpu_s": 2.0, "calibration_cpu_s": 0.1}, before) == (1.0, "CPU time")
    assert dearer({"requests": 100, "loop_cpu_s": 2.0, "calibration_cpu_s": 0.05}, before) == (2.0, "CPU time")


def test_instructions_decide_where_both_counted_them() -> None:
    counted = {"loop_instructions": 3000, "calibration_instructions": 10}
    before = {"requests": 1, "loop_cpu_s": 1.0, "calibration_cpu_s": 1.0, **counted}
    busy = {**before, "loop_cpu_s": 9.0}
    assert dearer(busy, before) == (1.0, "instructions")
    assert dearer({**busy, "loop_instructions": 6000}, before) == (2.0, "instructions")
    assert dearer({**busy, "loop_instructions": None}, before) == (9.0, "CPU time")


def test_what_is_stored_covers_the_quick_cases_and_names_no_place() -> None:
    assert {name for name, case in CASES.items() if case.group == "quick"} <= set(STORED["cases"])
    assert "/" not in RESULTS.read_text()


def test_a_case_of_few_requests_is_measured_and_fits_the_table() -> None:
    figures = measure("quick-conv", requests=20, repeats=1)
    assert figures["requests"] == 20
    assert figures["steps"] > 20
    assert 0 < figures["loop_cpu_s"] < figures["total_cpu_s"]
    assert row("quick-conv", CASES["quick-conv"], figures).startswith("quick-conv              20")


def test_instructions_are_counted_or_the_reason_is_told() -> None:
    meter = Meter()
    meter.start()
    calibrate()
    meter.stop()
    assert meter.reason if meter.instructions is None else meter.instructions > 60_000


def test_a_series_tells_its_dearest_over_its_cheapest() -> None:
    def run(steps: int, seconds: float) -> dict[str, float | None]:
        return {"steps": steps, "requests": 1, "loop_cpu_s": seconds, "loop_instructions": None}

    lines = series({"batch-16": run(100, 1.0), "batch-64": run(100, 3.0), "linear-10k": run(1, 1.0)})
    assert lines == ["batch: dearest over cheapest per step: CPU s 3.00x; at most 2.0x"]
    assert MOST == 1.5
    assert "quick" in GROUPS
