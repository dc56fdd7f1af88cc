"""Figures of a score, computed by hand; intervals resample whole servers and depend on the seed alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from servesim.experiments.accuracy.scores import estimate, estimates, median, numbered, resampled, score

ONE = np.ones((1, 4))
RATIOS = np.array([0.8, 1.0, 1.1, 2.0])


def figures(ratios: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    return {name: float(values[0]) for name, values in score(ratios, weights).items()}


def test_figures_by_hand() -> None:
    found = figures(RATIOS, ONE)
    assert found["mape"] == pytest.approx((0.2 + 0 + 0.1 + 1.0) / 4)
    assert found["bias"] == pytest.approx((0.8 * 1.0 * 1.1 * 2.0) ** 0.25 - 1)
    between = (math.log(1.1) + math.log(1 / 0.8)) / 2  # sizes: 0, log 1.1, log 1.25, log 2
    assert found["median"] == pytest.approx(math.exp(between) - 1)
    assert found["within_10"] == 0.5
    assert found["within_25"] == 0.75


def test_over_deployments_each_weighs_the_same() -> None:
    ratios = {metric: np.array([1.1, 1.1, 1.1, 1.5]) for metric in ("tpot", "ttft", "e2e")}
    found = estimates(ratios, ["a", "a", "a", "b"], 0, "x")
    assert found["over_cells"]["tpot"]["mape"]["value"] == pytest.approx((0.3 + 0.5) / 4)
    assert found["over_deployments"]["tpot"]["mape"]["value"] == pytest.approx((0.1 + 0.5) / 2)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1, 1, 1], 2.0), ([1, 1, 0], 1.5), ([3, 1, 1], 1.0), ([0, 0, 1], 9.0), ([1, 1, 2], 5.5)],
)
def test_weighted_median(weights: list[float], expected: float) -> None:
    values, rows = np.array([9.0, 1.0, 2.0]), np.array([[weights[2], weights[0], weights[1]]], dtype=float)
    assert median(values, rows)[0] == expected


def test_the_median_with_equal_weights_is_numpys() -> None:
    values = np.random.default_rng(3).normal(size=(20, 7))
    for row in values:
        assert median(row, np.ones((1, 7)))[0] == pytest.approx(np.median(row))


def test_servers_are_drawn_whole_and_as_many_as_there_are() -> None:
    groups = numbered(["a", "a", "b", "c", "c", "c"])
    times = resampled(groups, 5, "x", 200)
    assert times.shape == (201, 6)
    assert (times[0] == 1).all()
    assert (times[:, 0] == times[:, 1]).all()
    assert (times[:, 3] == times[:, 5]).all()
    assert (times[:, [0, 2, 3]].sum(axis=1) == 3).all()
    assert len(np.unique(times[1:], axis=0)) == 10, "all multisets of three"


def test_the_draws_depend_on_seed_and_purpose() -> None:
    groups = numbered(list("abcdef"))
    assert (resampled(groups, 1, "x", 50) == resampled(groups, 1, "x", 50)).all()
    assert (resampled(groups, 1, "x", 50) != resampled(groups, 2, "x", 50)).any()
    assert (resampled(groups, 1, "x", 50) != resampled(groups, 1, "y", 50)).any()


def test_the_interval_of_a_mean_covers_it_about_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(0), 0
    for seed in range(100):
        values = rng.normal(1.0, 1.0, 40)
        times = resampled(np.arange(40), seed, "x", 400)
        found = estimate((times * values).sum(axis=1) / times.sum(axis=1))
        assert found["low"] is not None
        assert found["high"] is not None
        hits += found["low"] <= 1.0 <= found["high"]
    assert 85 <= hits <= 99


def test_one_server_has_no_interval_and_none_no_figure() -> None:
    ratios = {metric: np.array([1.1, 1.2]) for metric in ("tpot", "ttft", "e2e")}
    found = estimates(ratios, ["a", "a"], 0, "x")["over_cells"]["tpot"]["mape"]
    assert found == {"value": pytest.approx(0.15), "low": None, "high": None}
    assert estimates({metric: np.zeros(0) for metric in ratios}, [], 0, "x") == {}
