"""Command lines of published benchmarks (../shared/groundtruth/gpustack): they become scenarios."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from servesim.hardware import ModelSpec
from servesim.run.scenario import Scenario
from servesim.run.serve_command import served

RUNS = Path(__file__).parents[3] / "shared/groundtruth/gpustack/runs.csv"
pytestmark = pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/groundtruth/gpustack")


def test_all_become_scenarios() -> None:
    with RUNS.open(encoding="utf-8", newline="") as file:
        commands = dict.fromkeys(row["serve_command"] for row in csv.DictReader(file))
    flags = set()
    for command in commands:
        found = served(command)
        scenario = Scenario.of({**found.settings, "trace": "synth:rate=1", "gpu": "h200"})
        assert ModelSpec.load(scenario.model).num_layers > 0
        flags |= {flag.partition(" ")[0] for flag in found.unknown}
    assert len(commands) == 56
    assert not flags
