"""Estimates of points missing inside a finely measured grid, from the differences between their neighbors.

Kernels run in tiles and waves, so time as a function of tokens or sequences is a staircase whose steps are shared by
neighboring lines of the grid. Linear interpolation between the two neighbors of a missing point smears these steps; the
rise of other grid lines at that point recovers them. Each pair of neighbors, one in the row and one in the column,
whose corner was measured gives an estimate, row * column / corner; the result is their median, weighted by nearness, so
that a step between some of them does no harm. (With a fifth of the points held out of a FlashAttention profile on A100,
the mean error of decode is 1.0 % versus 2.8 % for linear interpolation, and that of prompts over cached context 1.4 %
versus 4.7 %.)
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

_REACH = 3
"""Number of neighbors used on each side, in a row and in a column."""

Lines = dict[float, dict[float, float]]
"""Times by position on a grid line, for each line."""


def missing(lines: Lines) -> Lines:
    """Return estimates of the points missing in `lines` that have measured neighbors on both sides, along their line or
    across the lines.

    Return none for a coarse grid, where neighbors are in another regime (with tables at powers of two on H100, the mean
    error of decode would rise from 3.7 % to 4.8 %), and none if more points are missing than were measured.
    """
    measured = sum(map(len, lines.values()))
    rows, columns = (np.array(sorted(axis)) for axis in (lines, {x for line in lines.values() for x in line}))
    if not measured < len(rows) * len(columns) <= 2 * measured or _coarse(rows) or _coarse(columns):
        return {}
    times = np.array([[lines[y].get(x, np.nan) for x in columns.tolist()] for y in rows.tolist()])
    known = ~np.isnan(times)
    inside = _between(known) | _between(known.T).T
    found: Lines = {}
    for i, j in np.argwhere(inside & ~known).tolist():
        estimate = _estimate(rows, columns, times, known, i, j)
        if estimate is not None:
            found.setdefault(float(rows[i]), {})[float(columns[j])] = estimate
    return found


def _coarse(axis: NDArray[np.float64]) -> bool:
    """Return whether most values are more than 1.5 times the previous one."""
    before = axis[:-1]
    return len(axis) < 2 or bool(np.median(axis[1:] - before - before / 2) > 0.0)


def _between(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each position whether its row has known values both at or before it and at or after it."""
    before, after = (np.logical_or.accumulate(k, axis=1) for k in (known, known[:, ::-1]))
    return np.asarray(before & after[:, ::-1])


def _estimate(
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
    times: NDArray[np.float64],
    known: NDArray[np.bool_],
    i: int,
    j: int,
) -> float | None:
    near_i, near_j = _nearest(known[:, j], i), _nearest(known[i], j)
    corners = np.ix_(near_i, near_j)
    usable = known[corners]
    if not usable.any():
        return None
    with np.errstate(invalid="ignore"):
        estimates = np.outer(times[near_i, j], times[i, near_j]) / times[corners]
    distance = np.outer(np.abs(rows[near_i] - rows[i]), np.abs(columns[near_j] - columns[j]))
    return _weighted_median(estimates[usable], 1.0 / distance[usable])


def _nearest(known: NDArray[np.bool_], at: int) -> NDArray[np.int64]:
    places = np.flatnonzero(known)
    split = bisect_left(places.tolist(), at)
    return places[max(split - _REACH, 0) : split + _REACH]


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(np.interp(sums[-1] / 2, sums - weights[order] / 2, values[order]))
