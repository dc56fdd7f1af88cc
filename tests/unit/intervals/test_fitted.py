"""Factors of a case from fitted statistics, by hand; what is shipped keeps its promise on what was left out."""

from __future__ import annotations

import math

import pytest

from servesim.intervals.case import METRICS, Case
from servesim.intervals.distance import KINDS
from servesim.intervals.fitted import SHARES, Fitted, shipped

CASE = Case("vllm", "0.18.0", "llama-3.1-70b", "h200", "fp8", 4, 1, 20.0, 1000.0, 120.0, 12.0, 0.02)
DOCUMENT = {
    "kinds": {
        "gpu": {
            "terms": {"all:": [0.1, 0.2, 0.0, -2.0, -3.0, 0.0], "engine: vllm": [0.3, 0.0, 0.0, 0.5, 0.0, 0.0]},
            "quantiles": {"ttft": [i - 6.0 for i in range(13)], "tpot": [0.0] * 13, "e2e": [0.0] * 13},
        }
    }
}
GPU = next(kind for kind in KINDS if kind.name == "gpu")


def test_a_factor_is_the_sum_of_terms_and_a_quantile_in_units_of_the_scale() -> None:
    factors = Fitted(DOCUMENT).factors(CASE, GPU, "ttft")
    assert factors.location == pytest.approx(0.4)
    assert factors.scale == pytest.approx(math.exp(-1.5))
    assert factors.at(0.5) == pytest.approx(math.exp(0.4))
    assert factors.at(0.1) == pytest.approx(math.exp(0.4 - 4 * math.exp(-1.5)))
    assert factors.at(0.15) == pytest.approx(math.exp(0.4 - 3.5 * math.exp(-1.5)))
    assert factors.at(0.001) == factors.at(SHARES[0])


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize("metric", METRICS)
def test_shipped_quantiles_rise_and_lie_on_both_sides(kind: str, metric: str) -> None:
    quantiles = shipped().document["kinds"][kind]["quantiles"][metric]
    assert len(quantiles) == len(SHARES) == len(shipped().document["shares"])
    assert quantiles == sorted(quantiles)
    assert quantiles[0] < 0 < quantiles[-1]


@pytest.mark.parametrize("kind", ["deployment", "model", "version", "gpu"])
@pytest.mark.parametrize("metric", ["ttft", "tpot"])
def test_the_share_of_left_out_cells_inside_shipped_intervals_may_be_80_percent(kind: str, metric: str) -> None:
    coverage = shipped().document["judged"][kind][metric]["coverage"]
    assert coverage["low"] <= 0.8 <= coverage["high"]


def test_every_term_and_label_of_what_is_shipped_can_be_used() -> None:
    document = shipped().document
    assert all(len(row) == 6 for kind in document["kinds"].values() for row in kind["terms"].values())
    assert len(document["known"]["deployment"]) == document["fitted_on"]["deployments"] >= 9
