"""Points missing inside a measured grid."""

from __future__ import annotations

import numpy as np
import pytest

from servesim.cost.curve import INTERPOLATED, MEASURED
from servesim.cost.gaps import Lines, _nearest, missing
from servesim.cost.grid import completed
from servesim.cost.measured import CachedPrefill


def grid(*holes: tuple[float, float]) -> Lines:
    """Steps in both directions: 10 more from the 4th line on, doubled from column 60 on."""
    lines: Lines = {}
    for y in range(4, 12):
        for x in range(40, 90, 10):
            if (y, x) not in holes:
                lines.setdefault(y, {})[x] = (20.0 if y >= 8 else 10.0) * (2.0 if x >= 60 else 1.0)
    return lines


@pytest.mark.parametrize(("y", "x", "time"), [(7, 60, 20.0), (8, 50, 20.0), (7, 50, 10.0), (8, 60, 40.0)])
def test_a_missing_point_beside_a_step_lies_on_its_side_of_it(y: float, x: float, time: float) -> None:
    # half way between its neighbours on the line would be 15 or 30
    assert missing(grid((y, x))) == {y: {x: pytest.approx(time)}}


def test_several_missing_points_are_found_from_the_measured_ones_alone() -> None:
    holes = ((7, 60), (7, 70), (8, 60))
    found = missing(grid(*holes))
    assert {(y, x): ns for y, line in found.items() for x, ns in line.items()} == pytest.approx(
        {(7, 60): 20.0, (7, 70): 20.0, (8, 60): 40.0}
    )


def test_nothing_is_made_up_outside_what_was_measured() -> None:
    assert missing(grid()) == {}
    corner = [(y, x) for y in (10, 11) for x in (70, 80)]
    assert missing(grid(*corner)) == {}


def test_an_end_of_a_line_that_lines_around_it_reach_is_found() -> None:
    assert missing(grid((9, 80))) == {9: {80: pytest.approx(40.0)}}


def test_scattered_points_and_powers_of_two_are_no_fine_grid() -> None:
    assert missing({float(i): {float(i): 1.0} for i in range(4, 12)}) == {}
    coarse = {2.0**i: {2.0**j: 1.0 for j in range(5) if (i, j) != (2, 2)} for i in range(5)}
    assert missing(coarse) == {}


def test_curves_keep_what_was_measured_and_say_what_was_not() -> None:
    whole, entries = dict(completed(grid())), dict(completed(grid((7, 60))))
    assert entries[7].source(60) == INTERPOLATED
    assert entries[7].source(50) == entries[8].source(60) == MEASURED
    assert all(entries[y].at(x) == whole[y].at(x) for y in whole for x in (40, 50, 70, 80))


def test_a_prompt_over_cached_context_past_the_table_costs_its_work() -> None:
    rows = {"past_tokens": np.array([0, 0, 512, 512]), "new_tokens": np.array([256, 512, 256, 512])}
    cached = CachedPrefill({**rows, "time_us": np.array([5.0, 10.0, 15.0, 40.0])})
    # 1024 * (512 + 512 + 256) pairs against 512 * (512 + 256 + 256)
    assert cached.at(1024, 512)[0] == pytest.approx(40e3 * 2.5)


def test_a_missing_point_has_up_to_three_neighbors_on_each_side() -> None:
    known = np.array([1, 1, 0, 1, 1, 0, 1, 1, 1, 1], dtype=bool)
    assert _nearest(known, 5).tolist() == [1, 3, 4, 6, 7, 8]
    assert _nearest(known, 2).tolist() == [0, 1, 3, 4, 6]
    assert _nearest(known, 0).tolist() == [0, 1, 3]
