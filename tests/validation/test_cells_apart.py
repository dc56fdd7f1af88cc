"""Measured servers whose prefill and decode are apart (DeepSeek and Kimi-K2.5 on H200 to GB300).

Nothing was fitted to these cells and nothing chosen by them, so bounds are wide: they notice a break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servesim.experiments.accuracy.reading import read
from servesim.experiments.accuracy.recipes import recipe
from servesim.experiments.accuracy.screen import screen
from servesim.experiments.accuracy.study import accuracy
from servesim.run.scenario import Scenario

CELLS = "groundtruth/inferencex_cells/pd_given.csv"


def test_every_cell_is_a_scenario_and_none_is_screened(shared_data: Callable[[str], Path]) -> None:
    cells = read([shared_data(CELLS)])
    assert len(cells) == 92
    assert set(screen(cells)) == {""}
    assert {len(Scenario.of(recipe(cell).settings).pools) for cell in cells} == {2}


@pytest.mark.slow
def test_cells_of_few_clients_are_answered_and_met(shared_data: Callable[[str], Path]) -> None:
    scored, document = accuracy(shared_data(CELLS), only={"concurrency": [str(n) for n in range(1, 65)]})
    (whole, *_) = document["scores"]
    assert whole["answered"] == whole["cells"] == 44, [one.answer.reason for one in scored if one.ratios is None]
    for metric, most in (("tpot", 0.45), ("ttft", 0.6), ("e2e", 0.4)):
        assert whole["over_cells"][metric]["mape"]["value"] < most, metric
