"""Published runs told by their commands (../shared/groundtruth/gpustack): of two that differ in one, which is better?

The figures stand in docs/how-true.md. Nothing was fitted to or chosen on these runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from servesim.experiments.accuracy.study import accuracy

RUNS = Path(__file__).parents[3] / "shared/groundtruth/gpustack/runs.csv"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/groundtruth/gpustack"),
]


def test_of_23_pairs_of_commands_that_differ_in_one_thing_12_are_ordered_rightly() -> None:
    _, document = accuracy(RUNS, jobs=2)
    found = document["decisions"]["settings"]
    assert (document["kept"], document["scores"][0]["answered"]) == (135, 70)
    assert (found["pairs"], found["apart"]["pairs"]) == (23, 16)
    assert round(found["right"]["value"] * 23) >= 12
    assert round(found["apart"]["right"]["value"] * 16) >= 9
    missed = [(miss["about"], miss["measured"], miss["simulated"]) for miss in found["misses"]]
    assert sum(abs(measured) > 0.1 for _, measured, _ in missed) <= 6
