"""Cases that are warned of: what is expected of them, and how many of the worst cells that finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servesim.intervals.case import METRICS, Case
from servesim.intervals.fitted import Factors, Fitted
from servesim.run.error_bars import _doubt
from servesim_lab.intervals.doubts import doubts
from servesim_lab.intervals.fit import Data, statistics
from servesim_lab.intervals.residuals import Measured

LIKE = Case("vllm", "0.19.0", "calm", "h100", "bf16", 1, 1, 8.0, 1000.0, 200.0, 10.0, 0.0)


def data(wild: float) -> Data:
    """Twenty deployments of a calm engine with errors of 2 %, and three of another with errors of `wild`; of ten cells
    each."""
    rng = np.random.default_rng(0)
    cells = []
    for engine, size, count in (("vllm", 0.02, 20), ("sglang", wild, 3)):
        for tp in range(1, count + 1):
            for clients in range(1, 11):
                case = replace(LIKE, engine=engine, tp=tp, in_flight=float(clients))
                error = float(rng.normal() * size)
                residuals = dict.fromkeys(METRICS, error)
                cells.append(Measured(case, residuals, (1000, 100), clients, tp, 100.0))
    return Data.of(cells)


def test_an_expected_error_is_that_of_location_and_two_scales() -> None:
    assert Factors(0.3, 0.2, ()).expected == pytest.approx(0.5)
    assert Factors(-0.3, 0.2, ()).expected == pytest.approx(0.5)


def test_of_two_engines_the_wild_one_is_doubtful() -> None:
    """The worst tenth are 23 cells, most of the wild engine's 30; a tenth of the other 207 is accepted."""
    found = doubts(data(0.5))
    assert found["found"] > 0.8
    assert found["false_alarms"] <= 0.1
    hits, alarms = 23 * found["found"], 207 * found["false_alarms"]
    assert found["right"] == pytest.approx(hits / (hits + alarms), abs=0.01)


def test_where_all_are_alike_hardly_more_of_the_worst_are_found_than_by_chance() -> None:
    assert doubts(data(0.02))["found"] < 0.2


def test_a_run_says_it_of_a_doubtful_case_alone() -> None:
    made = data(0.5)
    fitted = Fitted({**statistics(made), "doubts": doubts(made)})
    wild, calm = (_doubt(fitted, replace(LIKE, engine=engine)) for engine in ("sglang", "vllm"))
    assert calm == ""
    assert wild.startswith("servers like this one are among the least certain: E2E of ")
    assert "(of all: 10 %)" in wild
    assert _doubt(Fitted(statistics(made)), replace(LIKE, engine="sglang")) == "", "nothing is known of it"
