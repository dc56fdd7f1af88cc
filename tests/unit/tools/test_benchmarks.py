"""The benchmarks measure what they say, and CI compares like with like."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.cases import BASE, CASES
from benchmarks.check import MOST, cheapest, dearer, judge
from benchmarks.measure import Meter, calibrate, in_own_process, measure
from benchmarks.table import GROUPS, RESULTS, row, series
from servesim.run.scenario import Scenario

STORED = json.loads(RESULTS.read_text())


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_scenario(name: str) -> None:
    Scenario.of({"trace": "file", **BASE, **CASES[name].settings})


TIMED = {"requests": 100, "loop_cpu_s": 1.0, "calibration_cpu_s": 0.05}
COUNTED = {**TIMED, "loop_instructions": 3000, "calibration_instructions": 10}


def test_costs_are_told_in_units_of_the_work_done_beside_them() -> None:
    assert dearer({**TIMED, "loop_cpu_s": 2.0, "calibration_cpu_s": 0.1}, TIMED, "cpu_s") == 1.0
    assert dearer({**TIMED, "loop_cpu_s": 2.0}, TIMED, "cpu_s") == 2.0
    assert dearer({**TIMED, "loop_cpu_s": 2.0, "requests": 200}, TIMED, "cpu_s") == 1.0


@pytest.mark.parametrize(
    ("instructions", "said", "fails"), [(4500, "1.50 times", False), (4530, "1.51 times", True), (1500, "0.50", False)]
)
def test_instructions_decide_where_both_sides_counted_them(instructions: int, said: str, fails: bool) -> None:
    busy = {**COUNTED, "loop_instructions": instructions, "loop_cpu_s": 9.0}
    line, failed = judge(busy, COUNTED)
    assert line.startswith(said)
    assert ("TOO SLOW" in line, failed) == (fails, fails)


@pytest.mark.parametrize(("now", "before"), [(TIMED, COUNTED), (COUNTED, TIMED), (TIMED, TIMED)])
def test_cpu_time_is_reported_and_decides_nothing(now: dict[str, float], before: dict[str, float]) -> None:
    line, failed = judge({**now, "loop_cpu_s": 9.0}, before)
    assert line == "9.00 times the cost by CPU time; decides nothing: instructions were not counted"
    assert not failed
    line, failed = judge({**TIMED, "skipped": "no counters here"}, before)
    assert (line.rpartition(": ")[2], failed) == ("no counters here", False)


def test_figures_of_another_python_decide_nothing() -> None:
    line, failed = judge({**COUNTED, "loop_instructions": 9000}, COUNTED, "another Python")
    assert (line, failed) == ("3.00 times the cost by instructions; decides nothing: another Python", False)


def test_a_case_that_does_not_run_fails_on_either_side() -> None:
    assert judge({"skipped": "no such trace"}, COUNTED) == ("no such trace", True)
    assert judge(COUNTED, {"skipped": "no such file"}) == ("the other build gives no figures: no such file", True)
    assert judge(COUNTED, None)[1] is False
    assert in_own_process("quick-conv", python="/no/such/python") == {
        "skipped": "/no/such/python: No such file or directory"
    }


def test_the_cheapest_of_several_processes_counts_unless_one_failed() -> None:
    assert cheapest([{**COUNTED, "loop_cpu_s": 3.0}, {**COUNTED, "calibration_cpu_s": 0.1}]) == COUNTED
    assert cheapest([{**COUNTED, "loop_instructions": None}, COUNTED])["loop_instructions"] is None
    assert cheapest([COUNTED, {"skipped": "killed"}]) == {"skipped": "killed"}


def test_another_build_is_measured_with_the_benchmarks_of_this_checkout() -> None:
    figures = in_own_process("quick-conv", requests=20, repeats=1, python=sys.executable)
    assert (figures["requests"], figures["loop_cpu_s"] > 0) == (20, True)


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
