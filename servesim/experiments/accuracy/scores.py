"""Scores of simulated times against measured ones. Every figure is defined next to the code that computes it.

A ratio is simulated over measured, and its logarithm is the error. Figures are weighted means and medians. In figures
over cells, every answered cell has the same weight; in figures over deployments, every deployment does, regardless of
its number of cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.experiments.statistics import LEVEL, Floats

Ints = NDArray[np.int64]

RESAMPLES = 1000
METRICS = ("tpot", "ttft", "e2e")
DEFINITIONS = {
    "mape": "mean of |ratio - 1|",
    "median": "median of |log ratio|, as the fraction exp(.) - 1",
    "bias": "geometric mean of the ratios, less 1",
    "within_10": "share with |log ratio| <= log 1.1",
    "within_25": "share with |log ratio| <= log 1.25",
    "e2e": (
        "TTFT + (mean output length - 1) TPOT, with the mean requested output length for both measured and simulated "
        "times"
    ),
    "intervals": f"percentiles {100 * (0.5 - LEVEL / 2):g} and {100 * (0.5 + LEVEL / 2):g} of {RESAMPLES} resamples of "
    "whole deployments (errors of one server's cells are correlated)",
}


Estimate = dict[str, float | None]
"""{"value", "low", "high"}: a figure and its interval; any of them is None if there is too little data."""


def mean(values: Floats, weights: Floats) -> Floats:
    """Return the weighted mean of values (n) for each row of weights (resamples, n), NaN if all weights are 0."""
    total = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights * values).sum(axis=1) / total)


def median(values: Floats, weights: Floats) -> Floats:
    """Return the weighted medians, as `mean` does: the mean of the smallest value with half of the weight at or below
    it and the largest value with half of the weight at or above it."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[:, order], axis=1)
    total = below[:, -1:]
    slack = 1e-9 * total
    low = np.argmax(below >= total / 2 - slack, axis=1)
    high = np.argmax(below > total / 2 + slack, axis=1)
    ranked = values[order]
    found = (ranked[low] + ranked[high]) / 2
    return np.where(total[:, 0] > 0, found, np.nan)


def score(ratios: Floats, weights: Floats) -> dict[str, Floats]:
    """Return the figures of `DEFINITIONS` for ratios (n) under each row of weights (resamples, n)."""
    size = np.abs(np.log(ratios))
    near = 1e-12  # a ratio of exactly 1.1 counts as within 10 %
    return {
        "mape": mean(np.abs(ratios - 1.0), weights),
        "median": np.expm1(median(size, weights)),
        "bias": np.expm1(mean(np.log(ratios), weights)),
        "within_10": mean((size <= np.log(1.1) + near).astype(np.float64), weights),
        "within_25": mean((size <= np.log(1.25) + near).astype(np.float64), weights),
    }


def numbered(keys: Sequence[object]) -> Ints:
    """Return each key's group number, with groups numbered in order of first appearance."""
    known: dict[object, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def resampled(groups: Ints, seed: int, purpose: str, resamples: int = RESAMPLES) -> Floats:
    """Return the number of times each row is drawn (1 + resamples, rows). Resample 0 counts every row once. The others
    are cluster bootstraps that draw as many groups as there are, with replacement. The draws depend only on `seed` and
    `purpose`."""
    count = int(groups.max()) + 1
    u = draws.uniform(seed, purpose, np.arange(resamples)[:, None], np.arange(count)[None, :])
    drawn = np.minimum((u * count).astype(np.int64), count - 1)
    times = np.zeros((resamples, count))
    np.add.at(times, (np.arange(resamples)[:, None], drawn), 1.0)
    return np.vstack([np.ones((1, len(groups))), times[:, groups]])


def estimate(values: Floats) -> Estimate:
    """Return the figure (the first value, if any) with the percentile interval of the others, or without an interval if
    fewer than two others are finite."""
    value = float(values[0]) if len(values) and np.isfinite(values[0]) else None
    others = values[1:][np.isfinite(values[1:])]
    if value is None or len(others) < 2:
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(others, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return {"value": value, "low": float(low), "high": float(high)}


def estimates(
    ratios: dict[str, Floats], deployments: Sequence[object], seed: int, purpose: str
) -> dict[str, dict[str, dict[str, Estimate]]]:
    """Return {"over_cells"|"over_deployments": {metric: {figure: estimate}}} for ratios by metric, or an empty dict if
    there are none."""
    groups = numbered(deployments)
    if not len(groups):
        return {}
    times = resampled(groups, seed, purpose)
    if groups.max() == 0:
        times = times[:1]  # one deployment: no interval
    share = 1.0 / np.bincount(groups)[groups]
    return {
        over: {
            metric: {name: estimate(values) for name, values in score(ratios[metric], weights).items()}
            for metric in METRICS
        }
        for over, weights in (("over_cells", times), ("over_deployments", times * share))
    }
