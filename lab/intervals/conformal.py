"""Conformal quantiles of residuals that were left out of their fit (CV+), every deployment weighing the same.

Deployments are exchangeable, their cells are not: with K of them and one to come each holds 1 / (K + 1) of the mass,
which its cells share, and the last 1 / (K + 1) lies beyond all that was seen (Lee, Barber and Willett 2023,
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
"""Least size of a residual that scales are fitted to: repeats of a measurement differ by no less."""


@dataclass(frozen=True)
class Left:
    """Result of one round of folds: residuals less the location, in units of the scale, neither having seen them."""

    scores: Floats
    """(n); NaN where the weight is 0."""
    location: Floats
    """Terms fitted to all (terms of the location's design)."""
    scale: Floats
    """Terms of log scale fitted to all (terms of the scale's design)."""


def leave_out(design: Design, spread: Design, y: Floats, weights: Floats, folds: Sequence[Fold]) -> Left:
    """Return scores (n) of residuals y (n): of each fold location (of `design`) and scale (of `spread`) are fitted to
    the cells it does not bar. Rows of weight 0 take no part."""
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
    """Return the conformal quantile of scores (n): of one more deployment (`known`: of one more cell of these) at
    most `share` lies below it where `share` is under one half, else at most 1 - share above. NaN where there are too
    few deployments for that."""
    if share < 0.5:
        return -quantile(-scores, deployments, 1.0 - share, known)
    names, places, counts = np.unique(np.array(deployments), return_inverse=True, return_counts=True)
    units = len(scores) if known else len(names)
    mass = units / (units + 1) / (len(names) * counts[places])
    order = np.argsort(scores, kind="stable")
    below = np.cumsum(mass[order])
    place = int(np.searchsorted(below, share - 1e-9))
    return float(scores[order[place]]) if place < len(order) else float("nan")
