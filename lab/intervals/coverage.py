"""Performance of intervals on cells that were left out twice: of their fit, and of the folds inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.experiments.accuracy import scores
from servesim.intervals.case import METRICS
from servesim.intervals.distance import Kind
from servesim.intervals.fitted import LEVEL
from servesim_lab.intervals.conformal import Floats, leave_out, quantile
from servesim_lab.intervals.fit import Data, fitting, inner_folds


@dataclass(frozen=True)
class Bounds:
    """Intervals of the residuals of n cells, each with a global interval for comparison: quantiles of the residuals
    themselves."""

    y: Floats
    low: Floats
    high: Floats
    global_low: Floats
    global_high: Floats

    def winkler(self, beside: bool = False) -> Floats:
        """Return Winkler scores (n): the width plus 2 / (1 - level) times the distance outside. With `beside`, score
        the global intervals."""
        low, high = (self.global_low, self.global_high) if beside else (self.low, self.high)
        out = np.maximum(low - self.y, 0.0) + np.maximum(self.y - high, 0.0)
        return np.asarray(high - low + 2 / (1 - LEVEL) * out, dtype=np.float64)

    @property
    def inside(self) -> Floats:
        """Indicator (n) that is 1 if the residual lies inside."""
        return np.asarray((self.y >= self.low) & (self.y <= self.high), dtype=np.float64)

    @property
    def half_widths(self) -> Floats:
        """Half the difference of the ends over their geometric mean (n): .1 is about 10 % on either side."""
        return np.asarray(np.sinh((self.high - self.low) / 2), dtype=np.float64)


def bounds(data: Data, kind: Kind, metric: str) -> Bounds:
    """Return the intervals of cells, computed from everything that their fold does not bar."""
    y = data.residuals(metric)
    design, spread = data.designs(kind)
    ends = np.full((4, len(y)), np.nan)
    for fold in data.folds(kind):
        used = ~fold.barred
        weights = np.where(used, data.weights, 0.0)
        left = leave_out(design, spread, y, weights, inner_folds(data, kind, used))
        scored = np.isfinite(left.scores)
        location, scale = design.values(left.location), np.exp(spread.values(left.scale))
        for row, share in enumerate(((1 - LEVEL) / 2, (1 + LEVEL) / 2)):
            z = quantile(left.scores[scored], data.deployments(scored), share, not kind.unknown)
            ends[row, fold.predicted] = (location + z * scale)[fold.predicted]
            ends[row + 2, fold.predicted] = quantile(y[used], data.deployments(used), share, not kind.unknown)
    return Bounds(y, *ends)


def judge(data: Data, kind: Kind, metric: str, seed: int = 0) -> dict[str, Any]:
    """Return the coverage, Winkler scores and widths of left-out cells, with equal weight for every deployment and with
    intervals from a cluster bootstrap over deployments. Coverage is also given by load, TTFT, engine and extrapolated
    share."""
    found = bounds(data, kind, metric)
    groups = scores.numbered([cell.case.deployment for cell in data.cells])
    times = scores.resampled(groups, seed, f"intervals {kind.name} {metric}")
    weights = times * data.weights
    parts: dict[str, Sequence[str]] = {
        "load": [cell.case.load for cell in data.cells],
        "ttft": ["below 100 ms" if cell.case.short else "100 ms and more" for cell in data.cells],
        "extrapolated": [cell.case.beyond for cell in data.cells],
        "engine": [cell.case.engine for cell in data.cells],
    }
    own, beside = (float(scores.mean(found.winkler(b), data.weights[None])[0]) for b in (False, True))
    return {
        "coverage": scores.estimate(scores.mean(found.inside, weights)),
        "winkler": own,
        "winkler_global": beside,
        "winkler_better": 1 - own / beside,
        "half_width": float(scores.median(found.half_widths, data.weights[None])[0]),
        "by": {
            name: {
                value: {
                    "cells": values.count(value),
                    "coverage": scores.estimate(scores.mean(found.inside, weights * (np.array(values) == value))),
                }
                for value in sorted(set(values))
            }
            for name, values in parts.items()
        },
    }


def judged(data: Data) -> dict[str, Any]:
    """Return the results of `judge` for all kinds and metrics, rounded."""
    found: dict[str, Any] = rounded(
        {kind.name: {metric: judge(data, kind, metric) for metric in METRICS} for kind in fitting(data)}
    )
    return found


def rounded(value: Any) -> Any:
    """Return a document rounded to three decimal places."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return round(value, 3) if isinstance(value, float) else value
