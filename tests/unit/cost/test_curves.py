"""Curves by hand: how two are mixed, and how they go on behind their last points."""

from __future__ import annotations

import pytest

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve, blend, monotone, total, upper

SLOW, FAST = Curve([0, 10], [0, 20]), Curve([0, 5, 10], [0, 30, 60])
"""2 and 6 ns each."""


def test_a_blend_has_the_knots_of_both_and_goes_on_by_the_slopes_of_both() -> None:
    """A quarter of 6 ns and three quarters of 2: 3 each, before the last point and behind it."""
    mixed = blend(SLOW, FAST, 0.25)
    assert list(mixed.xs) == [0, 5, 10]
    assert [mixed.at(x) for x in (0, 5, 10, 20)] == [0, 15, 30, 60]
    assert [blend(SLOW, FAST, weight).at(20) for weight in (0.0, 1.0)] == [40, 120]
    assert [mixed.source(x) for x in (0, 5, 10, 20)] == [INTERPOLATED] * 3 + [EXTRAPOLATED]


def test_a_sum_has_the_knots_of_all_and_goes_on_by_the_sum_of_the_slopes() -> None:
    both = total([SLOW, FAST])
    assert [both.at(x) for x in (5, 10, 20)] == [40, 80, 160]


def test_the_upper_of_two_goes_on_by_the_steeper() -> None:
    above = upper(Curve([0, 10], [30, 30], last_slope=0.0), SLOW)  # 30 up to 10, where the other has 20 and rises by 2
    assert [above.at(x) for x in (0, 10, 20)] == [30, 30, 50]


def test_a_hump_is_cut_off_and_the_end_stays() -> None:
    """40 at 5 is cut to the 20 at 10; on goes what the curve itself would: never down."""
    smooth = monotone(Curve([0, 5, 10, 20], [0, 40, 20, 50]))
    assert [smooth.at(x) for x in (0, 5, 10, 20)] == [0, 20, 20, 50]
    assert smooth.slopes[-1] == Curve([0, 5, 10, 20], [0, 40, 20, 50]).slopes[-1]


@pytest.mark.parametrize("base", [0.0, 0.4])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_run_over_knots_is_each_of_its_points(base: float, step: int) -> None:
    curve = Curve([0, 5, 10], [0, 30, 35], MEASURED)
    points = range(1, 1 + 9 * step, step)
    assert curve.rounded_run(base, 1, step, 9).tolist() == [int(base + curve.at(x) + 0.5) for x in points]
