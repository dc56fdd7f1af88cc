"""Conformal quantiles of residuals that were left out of their fit (CV+), with equal weight for every deployment.

Deployments are exchangeable, but their cells are not. With K deployments and one to come, each holds 1 / (K + 1) of the
mass, which its cells share, and the last 1 / (K + 1) lies beyond all observed values (Lee, Barber and Willett 2023,
"Distribution-free inference with hierarchical data"). An end that leaves out 10 % needs nine deployments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim_lab.intervals.folds import Fold
from servesim_lab.intervals.regression import Design

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FLOOR = 0.01
"""Minimum size of a residual in the fit of scales: repeats of a measurement differ by at least this."""


@dataclass(frozen=True)
class Left:
    """Result of one round of folds: residuals minus the location, in units of the scale, neither of which was fitted to
    them."""

    scores: Floats
    """Scores (n); NaN if the weight is 0."""
    location: Floats
    """Location terms fitted to all cells (terms of the location's design)."""
    scale: Floats
    """Terms of the log scale fitted to all cells (terms of the scale's design)."""


def leave_out(design: Design, spread: Design, y: Floats, weights: Floats, folds: Sequence[Fold]) -> Left:
    """Return the scores (n) of residuals y (n): for each fold, the location (from `design`) and the scale (from
    `spread`) are fitted to the cells that the fold does not bar. Rows of weight 0 are ignored."""
    rest = np.full(len(y), np.nan)
    for fold in folds:
        terms = design.fit(y, np.where(fold.barred, 0.0, weights))
        rest[fold.predicted] = (y - design.values(terms))[fold.predicted]
    size = np.log(np.maximum(np.abs(np.nan_to_num(rest, nan=1.0)), FLOOR))
    scores = np.full(len(y), np.nan)
    for fold in folds:
        scale = spread.values(spread.fit(size, np.where(fold.barred, 0.0, weights)))
        scores[fold.predicted] = (rest / np.exp(scale))[fold.predicted]
    return Left(scores, design.fit(y, weights), spread.fit(size, weights))


def quantile(scores: Floats, deployments: Sequence[str], share: float, known: bool = False) -> float:
    """Return the conformal quantile of scores (n) for one more deployment (with `known`, for one more cell of these
    deployments). If `share` is below one half, at most `share` lies below the quantile; otherwise at most 1 - share
    lies above it. Return NaN if there are too few deployments."""
    if share < 0.5:
        return -quantile(-scores, deployments, 1.0 - share, known)
    names, places, counts = np.unique(np.array(deployments), return_inverse=True, return_counts=True)
    units = len(scores) if known else len(names)
    mass = units / (units + 1) / (len(names) * counts[places])
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(mass[order])
    place = int(np.searchsorted(below, share - 1e-9))
    return float(scores[order[place]]) if place < len(order) else float("nan")
