"""The table of `servesim accuracy`: percentages, and factors where there is no sign."""

from __future__ import annotations

import numpy as np

from servesim.cli.accuracy import _figures
from servesim.experiments.accuracy.scores import score


def test_times_far_too_short_are_told_on_two_scales() -> None:
    """Times of 0.42 of the measured ones are 58 % too short; the factor between the two is 2.38."""
    figures = {name: {"value": float(found[0])} for name, found in score(np.full(3, 0.42), np.ones((1, 3))).items()}
    row = {"answered": 3, "over_cells": dict.fromkeys(("tpot", "ttft", "e2e"), figures)}
    assert _figures(row) == ["58.0 %", "x2.38", "-58.0 %"] * 3
    assert _figures({"answered": 0}) == []
