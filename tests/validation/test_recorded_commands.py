"""Published runs told by their commands (../shared/groundtruth/gpustack): of two that differ in one, which is better?

The figures stand in docs/accuracy-notes.md. Two of these runs gave the rate of attention with sinks on A100."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servesim.experiments.accuracy.files import CELLS, write
from servesim.experiments.accuracy.study import accuracy
from servesim.intervals.case import METRICS
from servesim.intervals.fitted import shipped
from servesim_lab.intervals.residuals import Measured, deployment_weights, read_measured

RUNS = Path(__file__).parents[3] / "shared/groundtruth/gpustack/runs.csv"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/groundtruth/gpustack"),
]


def test_of_39_pairs_of_commands_that_differ_in_one_thing_29_are_ordered_correctly() -> None:
    _, document = accuracy(RUNS, jobs=2)
    found = document["decisions"]["settings"]
    assert (document["kept"], document["scores"][0]["answered"]) == (135, 111)
    assert (found["pairs"], found["apart"]["pairs"]) == (39, 25)
    assert round(found["right"]["value"] * 39) >= 29
    assert round(found["apart"]["right"]["value"] * 25) >= 22
    missed = [(miss["about"], miss["measured"], miss["simulated"]) for miss in found["misses"]]
    assert sum(abs(measured) > 0.1 for _, measured, _ in missed) <= 3
    overall = document["scores"][0]["over_cells"]
    errors = [overall[name]["mape"]["value"] for name in ("tpot", "ttft", "e2e")]
    assert [round(100 * error) for error in errors] == [25, 19, 19]
    (ours,) = (row for row in shipped().document["laboratories"]["left_out"] if row["laboratory"] == "gpustack")
    assert (ours["kept"], ours["answered"]) == (135, 111)
    assert [ours["errors"][name]["mape"] for name in ("tpot", "ttft", "e2e")] == pytest.approx(errors, abs=2e-3)


def test_bars_hold_eight_of_ten_of_these_servers_which_they_were_not_fitted_to(tmp_path: Path) -> None:
    """Widened for an unseen laboratory; without that they hold a quarter of TPOT."""
    write(tmp_path, *accuracy(RUNS, jobs=2))
    cells = [cell for cell in read_measured([tmp_path / CELLS]) if shipped().kind_of(cell.case)[0] is not None]
    weights = deployment_weights(cells)
    for metric in METRICS:
        inside = {
            measured: np.average([_holds(cell, metric, measured) for cell in cells], weights=weights)
            for measured in (True, False)
        }
        assert inside[False] >= 0.78, metric  # .8 when fitted
        assert inside[True] < 0.7 or metric == "ttft"


def _holds(cell: Measured, metric: str, measured: bool) -> bool:
    case = replace(cell.case, measured=measured)
    kind, _ = shipped().kind_of(case)
    assert kind is not None
    factors = shipped().factors(case, kind, metric)
    return factors.at(0.1) <= math.exp(cell.residuals[metric]) <= factors.at(0.9)


def test_what_is_not_answered_is_not_known_to_have_run_so() -> None:
    scored, _ = accuracy(RUNS, jobs=2)
    reasons = Counter(one.answer.reason.partition(":")[0] for one in scored if not one.screened and one.answer.reason)
    assert reasons == {
        "GPU 910b": 12,
        "the run's heading and its command name different models or flags": 5,
        "far fewer requests were in flight than there were clients, so they were sent at an unstated rate": 4,
        "glm-4.5-air (bf16, tp 2) on h100": 2,
        "gpt-oss-120b (bf16, tp 1) on a100": 1,
    }
