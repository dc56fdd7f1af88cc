"""Factors of a case from fitted statistics, by hand; what is shipped keeps its promise on what was left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from servesim.intervals.case import CROWDS, METRICS, Case
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


def test_a_server_that_was_not_measured_has_the_ends_of_an_unseen_laboratory_and_a_measured_one_has_not() -> None:
    wider = {metric: {"low": 1.5, "high": 3.0} for metric in METRICS}
    fitted = Fitted({**DOCUMENT, "laboratories": {"wider": {CASE.crowd: wider}}})
    plain, own = Fitted(DOCUMENT), replace(CASE, measured=True)
    far = {share: math.log(fitted.factors(CASE, GPU, "ttft").at(share)) - 0.4 for share in (0.1, 0.4, 0.5, 0.9)}
    unit = math.exp(-1.5)  # quantiles are -4, -1 and 4 of it from the median, 1
    assert far == pytest.approx({0.1: -6 * unit, 0.4: -1.5 * unit, 0.5: 0.0, 0.9: 12 * unit})
    assert fitted.factors(own, GPU, "ttft") == plain.factors(CASE, GPU, "ttft")


def test_coverage_of_an_unseen_laboratory_is_that_of_laboratories_left_out() -> None:
    judged = {"gpu": {"tpot": {"coverage": {"value": 0.81, "low": 0.7, "high": 0.9}}}}
    left_out = {"tpot": {"value": 0.79, "low": 0.5, "high": 1.0}}
    fitted = Fitted({**DOCUMENT, "judged": judged, "laboratories": {"coverage": left_out}})
    assert fitted.coverage(CASE, GPU, "tpot") == left_out["tpot"]
    assert fitted.coverage(replace(CASE, measured=True), GPU, "tpot") == judged["gpu"]["tpot"]["coverage"]
    assert fitted.coverage(CASE, GPU, "ttft") is None


def test_shipped_ends_of_an_unseen_laboratory_lie_outside_those_of_a_measured_server() -> None:
    few, many = (shipped().document["laboratories"]["wider"][crowd] for crowd in CROWDS)
    assert all(ends["low"] >= 1 and ends["high"] >= 1 for wider in (few, many) for ends in wider.values())
    for metric in ("tpot", "e2e"):  # servers nobody tuned are slower, and bursts at them most of all
        assert many[metric]["high"] > few[metric]["high"] > few[metric]["low"]
        assert many[metric]["of"]["high"] == "gpustack"


@pytest.mark.parametrize("metric", METRICS)
def test_shipped_bars_hold_80_percent_of_every_laboratory_that_they_are_not_fitted_to(metric: str) -> None:
    document = shipped().document["laboratories"]
    rows = {row["laboratory"]: row[metric] for row in document["left_out"] if row["with_bars"]}
    assert {"gpustack", "InferenceX", "NVIDIA"} < set(rows)
    assert all(row["inside"] >= 0.8 for row in rows.values())
    assert document["coverage"][metric]["high"] >= 0.8  # over laboratories that the widening is not fitted to either
    assert rows["gpustack"]["not_widened"] < 0.8 or metric == "ttft"  # what the widening is for


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
