"""Statistics of comparisons, against hand-computed cases and known distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servesim.experiments.statistics import (
    FEWEST,
    Interval,
    bca_interval,
    block_length,
    effective_number,
    holm,
    interval,
    replicates_needed,
    sign_flip_p,
    studentized_interval,
    successive_interval,
    t_interval,
    verdict,
)


def test_the_t_interval_of_a_textbook_sample() -> None:
    # mean 2, sd 1, n 3: 2 +- 4.30265 / sqrt(3)
    assert t_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-5)


def test_equal_differences_have_an_interval_without_width_and_one_replicate_has_none() -> None:
    assert interval(np.array([0.5, 0.5])) == (0.5, 0.5)
    assert interval(np.array([0.5])) == (-np.inf, np.inf)


def test_the_sign_flip_test_is_exact_for_few_pairs() -> None:
    # of 2^5 sign patterns only all plus and all minus reach this mean
    assert sign_flip_p(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(2 / 32)
    # |mean| of (3, -1): reached by (3,-1) (-3,1) (3,1) (-3,-1)
    assert sign_flip_p(np.array([3.0, -1.0])) == 1.0
    assert sign_flip_p(np.zeros(4)) == 1.0


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_p_values_and_keeps_their_order(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a >= b for a, b in zip(adjusted, p, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("method", "n"), [("t", 5), ("t", 20), ("studentized", 10), ("studentized", 20), ("bca", 30), ("bca", 60)]
)
def test_intervals_cover_the_mean_of_a_normal_sample_as_often_as_they_say(
    method: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servesim.experiments.statistics.RESAMPLES", 999)
    rng = np.random.default_rng(7)
    covers = 0
    for _ in range(1000):
        low, high = interval(rng.normal(0.3, 1, n), method)
        covers += low <= 0.3 <= high
    assert 929 <= covers <= 971  # three standard errors about 950


def test_bootstrap_intervals_lean_where_the_sample_is_skewed() -> None:
    d = np.random.default_rng(3).lognormal(0, 1, 40)
    for low, high in (bca_interval(d), studentized_interval(d)):
        assert high - d.mean() > 1.2 * (d.mean() - low)


def test_intervals_are_the_same_each_time() -> None:
    d = np.random.default_rng(3).normal(size=40)
    assert bca_interval(d) == bca_interval(d)
    assert studentized_interval(d) == studentized_interval(d)


def test_blocks_of_independent_values_are_short_and_of_queues_long() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=4000)
    queue = np.zeros(4000)
    for i in range(1, 4000):
        queue[i] = 0.95 * queue[i - 1] + noise[i]
    assert block_length(noise) <= 3
    # Politis and White: (2 g^2 / (4/3 s^2))^(1/3) n^(1/3) with g/s = 2 a / (1 - a^2) for AR(1): 130 here
    assert 60 <= block_length(queue) <= 260
    assert block_length(np.ones(50)) == 1


def test_neighbors_that_agree_count_for_fewer_and_those_that_alternate_for_no_more() -> None:
    assert effective_number(np.array([1.0, -1.0] * 5)) == 10
    # Without a trend, the products of neighbors sum up to 3 of 8 squares: r is 3/8, with its bias 3/8 + 3.5/8.
    assert effective_number(np.array([1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0])) == FEWEST > 8 * 1.5 / 14.5
    # To -1 of 8: -1/8 + 1.5/8.
    assert effective_number(np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0])) == pytest.approx(8 * 7.5 / 8.5)
    assert effective_number(np.array([2.0, 2.0, 2.0, 2.0])) == 4
    assert effective_number(np.array([1.0, 2.0])) == 2


def test_a_trend_is_no_luck_of_neighbors() -> None:
    noise = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    assert effective_number(noise + np.arange(10)) == effective_number(noise) == 10


def test_of_ten_windows_whose_neighbors_agree_nine_intervals_in_ten_cover_and_t_intervals_fewer() -> None:
    rng = np.random.default_rng(11)
    covered = {"successive": 0, "independent": 0}
    for _ in range(1000):
        noise, series = rng.normal(size=30), np.zeros(30)
        for i in range(1, 30):
            series[i] = 0.35 * series[i - 1] + noise[i]
        windows = series[-10:]
        (low, high), p = successive_interval(windows)
        assert (p < 0.05) == (not low <= 0 <= high)
        covered["successive"] += low <= 0 <= high
        low, high = interval(windows, "t")
        covered["independent"] += low <= 0 <= high
    assert covered["successive"] >= 890
    assert covered["independent"] <= 870


def test_one_window_tells_nothing_and_equal_ones_all() -> None:
    assert successive_interval(np.array([1.0])) == (Interval(-np.inf, np.inf), 1.0)
    assert successive_interval(np.full(6, 0.5)) == (Interval(0.5, 0.5), 0.0)
    assert successive_interval(np.zeros(6)) == (Interval(0.0, 0.0), 1.0)
    assert successive_interval(np.array([-np.inf, 0.5, np.nan, 0.5])) == (Interval(0.5, 0.5), 0.0)
    assert successive_interval(np.array([np.nan])) == (Interval(-np.inf, np.inf), 1.0)


def test_replicates_needed_follow_the_power_formula() -> None:
    d = np.array([0.04, 0.06] * 10)  # mean 0.05, sd 0.01026
    assert replicates_needed(d, 0.02) == 6  # what the sign-flip test needs at least: 2^-5 = 0.031
    wide = np.array([0.05 - 0.1, 0.05 + 0.1] * 10)  # sd 0.1026: ((1.96 + 1.28) * 0.1026 / 0.05)^2 = 44.2, and t's tails
    assert 44 <= (replicates_needed(wide, 0.02) or 0) <= 48
    assert (replicates_needed(wide, 0.02, family=5) or 0) > (replicates_needed(wide, 0.02) or 0)


def test_a_difference_of_nothing_is_decided_by_the_margin() -> None:
    d = np.array([-0.01, 0.01] * 5)  # mean 0: within 0.02 by ((1.96 + 1.28) * 0.0105 / 0.02)^2 = 2.9 and t's tails
    assert 3 <= (replicates_needed(d, 0.02) or 0) <= 6
    assert replicates_needed(d, 1e-9) is None


@pytest.mark.parametrize(
    ("found", "p", "better", "said"),
    [
        ((0.03, 0.08), 0.01, "higher", "better"),
        ((0.03, 0.08), 0.01, "lower", "worse"),
        ((-0.08, -0.03), 0.01, "lower", "better"),
        ((0.03, 0.08), 0.2, "higher", "undecided"),  # many policies: the adjusted test does not agree
        ((-0.01, 0.08), 0.01, "higher", "undecided"),
        ((0.001, 0.019), 0.01, "higher", "equivalent"),  # certain, and too small to matter
        ((-0.019, 0.019), 0.9, "higher", "equivalent"),
    ],
)
def test_verdicts(found: tuple[float, float], p: float, better: str, said: str) -> None:
    assert verdict(np.array([0.1, 0.2]), Interval(*found), p, better, 0.02) == said


def test_no_difference_in_any_replicate_is_identical() -> None:
    assert verdict(np.zeros(3), Interval(0, 0), 1.0, "lower", 0.02) == "identical"
