"""Curves by hand: how two are mixed, and how they go on behind their last points."""

from __future__ import annotations

import pytest

from servesim.cost.curve import EXTRAPOLATED, INTERPOLATED, MEASURED, ROOFLINE, Curve
from servesim.cost.curves import blend, free_up_to, monotone, rise, total, upper
from servesim.cost.measured import _at

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
    known = total([SLOW, Curve([0, 10], [0, 20], beyond=ROOFLINE)])
    assert [known.source(x) for x in (10, 20)] == [MEASURED, ROOFLINE], "as uncertain as the least certain"


def test_the_upper_of_two_goes_on_by_the_steeper() -> None:
    above = upper(Curve([0, 10], [30, 30], last_slope=0.0), SLOW)  # 30 up to 10, where the other has 20 and rises by 2
    assert [above.at(x) for x in (0, 10, 20)] == [30, 30, 50]


def test_a_hump_is_cut_off_and_the_end_stays() -> None:
    """40 at 5 is cut to the 20 at 10; on goes what the curve itself would: never down."""
    smooth = monotone(Curve([0, 5, 10, 20], [0, 40, 20, 50]))
    assert [smooth.at(x) for x in (0, 5, 10, 20)] == [0, 20, 20, 50]
    assert smooth.slopes[-1] == Curve([0, 5, 10, 20], [0, 40, 20, 50]).slopes[-1]
    known = monotone(Curve([0, 5, 10], [0, 40, 20], [MEASURED, INTERPOLATED, MEASURED], beyond=ROOFLINE))
    assert [known.source(x) for x in (0, 5, 7, 10, 11)] == [MEASURED, INTERPOLATED, INTERPOLATED, MEASURED, ROOFLINE]


def test_a_curve_is_flat_before_its_first_point_and_holds_its_rate_behind_the_last() -> None:
    curve = Curve([4, 10], [20, 50], [ROOFLINE, MEASURED])
    assert [curve.at(x) for x in (0, 3, 4, 7, 10, 12)] == [20, 20, 20, 35, 50, 60]
    assert [curve.source(x) for x in (0, 3, 4, 7, 10, 12)] == [3, 3, ROOFLINE, 3, MEASURED, EXTRAPOLATED]
    assert (curve.known_to, Curve([0, 5], [1, 2], EXTRAPOLATED).known_to) == (10, 0)
    assert [Curve([0], [5]).at(x) for x in (0, 9)] == [5, 5]  # a rate needs a size
    assert Curve([0, 10], [0, 20], last_slope=0.0).at(30) == 20


def test_runs_of_a_kernel_over_a_finer_quantity() -> None:
    """Three times the time at ten times the x, with the slope behind the end as it was given."""
    curve = Curve([0, 2], [4, 8], [MEASURED, EXTRAPOLATED], last_slope=5.0).scaled(3.0, 10.0)
    assert [curve.at(x) for x in (0, 10, 20, 30)] == [12, 18, 24, 24 + 3 * 5]
    assert [curve.source(x) for x in (0, 10, 20, 30)] == [MEASURED, EXTRAPOLATED, EXTRAPOLATED, EXTRAPOLATED]
    moved = Curve([0, 2], [4, 8], [MEASURED, EXTRAPOLATED]).over([0, 4])
    assert [moved.at(x) for x in (0, 2, 4)] == [4, 6, 8]
    assert moved.source(4) == EXTRAPOLATED


def test_what_another_kernel_does_up_to_a_size_is_free_and_whole_from_the_next_on() -> None:
    curve = free_up_to(Curve([0, 4, 8], [40, 80, 160], [MEASURED, INTERPOLATED, ROOFLINE], last_slope=7.0), 4)
    assert [curve.at(x) for x in (0, 4, 5, 6, 8, 9)] == [0, 0, 100, 120, 160, 167]
    assert [curve.source(x) for x in (0, 4, 5, 8, 9)] == [INTERPOLATED, INTERPOLATED, ROOFLINE, ROOFLINE, ROOFLINE]
    same = Curve([0, 4], [40, 80])
    assert free_up_to(same, 0) is same
    assert [free_up_to(same, 1).at(x) for x in (1, 2)] == [0, 60]
    assert [free_up_to(same, 3).xs, free_up_to(same, 4).xs] == [[0, 3, 4], [0, 4, 5]]
    assert free_up_to(Curve([0, 4], [40, 80], beyond=ROOFLINE), 1).source(9) == ROOFLINE


def test_a_rise_is_the_median_slope_of_the_last_point_its_half_and_its_quarter() -> None:
    """From 100: slopes 3 from 2 to 4 and 8, and of an outlier at 4."""
    assert rise([1, 2, 4, 8], [100, 106, 112, 124]) == 3
    assert rise([1, 2, 4, 8], [100, 106, 200, 124]) == 3  # of 47, 3 and -19
    assert rise([4, 8], [10, 18]) == 2
    assert rise([8], [16]) == 2
    assert rise([20, 30, 50, 100], [0, 30, 50, 100]) == 1  # 20 is less than a quarter
    assert rise([2, 4, 8], [30, 20, 10]) == 0.0


def test_the_upper_of_two_says_where_each_point_is_from_and_at_a_tie_the_first() -> None:
    above = upper(Curve([0, 10], [10, 10], MEASURED), Curve([0, 10], [0, 10], ROOFLINE))
    assert [above.source(x) for x in (0, 10)] == [MEASURED, MEASURED]
    assert upper(Curve([0, 10], [10, 10], MEASURED), Curve([0, 10], [0, 11], ROOFLINE)).source(10) == ROOFLINE


def test_a_sum_is_as_uncertain_as_its_least_certain_part() -> None:
    both = total([Curve([0, 10], [0, 20], [MEASURED, ROOFLINE]), Curve([0, 5], [1, 1], MEASURED, beyond=INTERPOLATED)])
    assert [both.source(x) for x in (0, 5, 10, 11)] == [MEASURED, ROOFLINE, ROOFLINE, ROOFLINE]
    assert total([SLOW]) is SLOW


@pytest.mark.parametrize("base", [0.0, 0.4])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_run_over_knots_is_each_of_its_points(base: float, step: int) -> None:
    curve = Curve([0, 5, 10], [0, 30, 35], MEASURED)
    points = range(1, 1 + 9 * step, step)
    assert curve.rounded_run(base, 1, step, 9).tolist() == [int(base + curve.at(x) + 0.5) for x in points]


@pytest.mark.parametrize("count", [1, 9, 10, 12, 13, 14, 31, 32, 33, 60])
def test_times_as_a_list_and_as_an_array_are_those_of_a_run(count: int) -> None:
    curve = Curve([0, 5, 90.5], [0, 30, 70], MEASURED)
    for first in (1, 5, 60):
        run = [int((0.4 + start_ns + 0.5) + (x - start) * slope) for x in range(first, first + 2 * count, 2)
               for start, start_ns, slope, *_ in [curve.piece(x)]]  # fmt: skip
        times = curve.rounded_times(0.4, first, 2, count)
        assert list(times) == run == curve.rounded_run(0.4, first, 2, count).tolist()


def test_a_curve_has_a_time_for_each_size() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Curve([0, 1, 2], [3, 4])


@pytest.mark.parametrize(("count", "ns"), [(1, 20.0), (2, 20.0), (3, 30.0), (7, 85.0), (8, 100.0), (16, 200.0)])
def test_the_excess_of_a_number_of_sequences_lies_between_those_measured_and_grows_with_it_beyond(
    count: int, ns: float
) -> None:
    lines = {n: Curve([0, 10], [0, each]) for n, each in ((2, 20), (4, 40), (8, 100))}
    assert _at(lines, count, 10) == ns
