"""CPU seconds of whole runs, the quick cases of the table: `pytest benchmarks -m benchmark`."""

from __future__ import annotations

import time
from typing import Any

import pytest

import servesim
from benchmarks.cases import CASES
from benchmarks.measure import settings_of

pytestmark = [pytest.mark.benchmark(timer=time.process_time)]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.group == "quick"])
def test_a_run(benchmark: Any, name: str) -> None:
    settings = settings_of(CASES[name])
    result = benchmark.pedantic(servesim.simulate, args=(settings,), rounds=3, warmup_rounds=1)
    assert result.summary["requests"]["completed"] == settings["requests"]
