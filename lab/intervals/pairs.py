"""Pairs of measured cells under one workload that differ in one thing: statistics of the ratio's error, and how often
"A is cheaper" with an interval that excludes 1 was true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.accuracy import scores
from servesim.intervals.case import METRICS
from servesim.intervals.fitted import LEVEL
from servesim.intervals.pairs import LEVELS, kind_of_pair, pair_features
from servesim_lab.intervals.conformal import FLOOR, Floats, quantile
from servesim_lab.intervals.folds import Bools, Fold
from servesim_lab.intervals.regression import Design
from servesim_lab.intervals.residuals import Measured

PENALTIES = {"all": 0.1, "pair": 3.0, "engines": 3.0, "pair engines": 3.0, "short": 3.0, "load": 5.0, "model": 4.0}
"""Penalties of the scale's terms, in pairs of deployments."""
DEALT = 9
"""Number of groups among which deployments are distributed; a fold consists of two groups."""
FEWEST = 9
"""Minimum number of deployment pairs for a kind of pair to have an interval."""
FOLDS = ("deployment", "model")
"""Kinds of pairs that each fold leaves out: all pairs of either deployment, or of the model."""


@dataclass(frozen=True)
class Pair:
    """Two cells with the same model, GPU and pair of lengths, and with the same number of clients in total or per
    GPU."""

    kind: str
    first: Measured
    second: Measured

    def residual(self, metric: str) -> float:
        """Return the log of the measured ratio over the simulated ratio."""
        return self.first.residuals[metric] - self.second.residuals[metric]

    @property
    def names(self) -> tuple[str, str]:
        """Names of the deployments, in order."""
        a, b = sorted((self.first.case.deployment, self.second.case.deployment))
        return a, b

    @property
    def cheaper(self) -> float:
        """Log of the ratio of the first cell's simulated price per output token to the second's, in a closed loop."""
        return _price(self.first) - _price(self.second)


def _price(one: Measured) -> float:
    e2e = one.case.ttft_ms + (one.output_mean - 1) * one.case.tpot_ms
    return float(np.log(one.gpus * e2e / one.concurrency))


def pairs(cells: Sequence[Measured]) -> list[Pair]:
    """Return all pairs that differ in one thing."""
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for cell in cells:
        groups.setdefault((cell.case.model, cell.case.gpu, cell.lengths), []).append(cell)
    return [pair for group in groups.values() for pair in _of_group(group)]


def _of_group(group: Sequence[Measured]) -> Iterator[Pair]:
    for a, b in combinations(group, 2):
        kind, _ = kind_of_pair(a.case, b.case)
        alike = a.concurrency == b.concurrency or a.concurrency * b.gpus == b.concurrency * a.gpus
        if kind and alike and (kind == "size" or a.gpus == b.gpus):
            yield Pair(kind, a, b)


class HalfWidths(NamedTuple):
    """Half-widths of the intervals of log ratios."""

    half: Floats
    """Half-widths (n) at `LEVEL`."""
    reach: float
    """Half-width in units of the scale, at `LEVEL`."""
    reaches: tuple[float, ...]
    """Half-widths in units of the scale at `LEVELS`; NaN if there are too few pairs of deployments."""
    terms: Floats
    """Terms of the log scale."""


@dataclass(frozen=True)
class PairData:
    """Pairs as arrays of length n."""

    pairs: tuple[Pair, ...]
    weights: Floats
    """Weights (n), which sum to 1 for every pair of deployments."""
    design: Design

    @classmethod
    def of(cls, cells: Sequence[Measured]) -> PairData:
        """Pair the cells, and keep the kinds of pairs that at least `FEWEST` pairs of deployments have."""
        found = pairs(cells)
        counts = Counter(kind for kind, _ in {(pair.kind, pair.names) for pair in found})
        found = [pair for pair in found if counts[pair.kind] >= FEWEST]
        keys = scores.numbered([pair.names for pair in found])
        rows = [pair_features(pair.kind, pair.first.case, pair.second.case) for pair in found]
        weights = 1.0 / np.bincount(keys)[keys] if found else np.zeros(0)
        return cls(tuple(found), weights, Design.of_features(rows, PENALTIES))

    def sizes(self, metric: str) -> Floats:
        """Return absolute residuals (n)."""
        return np.asarray(np.abs([pair.residual(metric) for pair in self.pairs]), dtype=np.float64)

    def scale(self, metric: str, weights: Floats) -> Floats:
        """Return the terms of the log scale."""
        return self.design.fit(np.log(np.maximum(self.sizes(metric), FLOOR)), weights)

    def folds(self, what: str, used: Bools) -> list[Fold]:
        """Return the folds over the pairs used (n) that leave out pairs by `what`, one of `FOLDS`."""
        return list(self._by_model(used) if what == "model" else self._by_deployment(used))

    def _by_model(self, used: Bools) -> Iterator[Fold]:
        models = np.array([pair.first.case.model for pair in self.pairs])
        for model in sorted(set(models[used].tolist())):
            yield Fold((models == model) & used, models == model)

    def _by_deployment(self, used: Bools) -> Iterator[Fold]:
        names = sorted({name for pair in self.pairs for name in pair.names})
        group = {name: i % DEALT for i, name in enumerate(names)}
        ends = np.array([[group[name] for name in pair.names] for pair in self.pairs])
        for a in range(DEALT):
            for b in range(a, DEALT):
                mine = (ends.min(axis=1) == a) & (ends.max(axis=1) == b) & used
                if mine.any():
                    yield Fold(mine, np.asarray(np.isin(ends, (a, b)).any(axis=1), dtype=np.bool_))

    def half_widths(self, metric: str, what: str, used: Bools) -> HalfWidths:
        """Return the half-widths of the log ratio, computed from the pairs used (n)."""
        size, unit = self.sizes(metric), np.full(len(self.pairs), np.nan)
        weights = np.where(used, self.weights, 0.0)
        for fold in self.folds(what, used):
            inside = np.where(fold.barred, 0.0, weights)
            if inside.any():
                scale = np.exp(self.design.values(self.scale(metric, inside)))
                unit[fold.predicted] = (size / scale)[fold.predicted]
        scored = np.isfinite(unit)
        names = [" | ".join(pair.names) for pair, one in zip(self.pairs, scored, strict=True) if one]
        reach, *reaches = (quantile(unit[scored], names, level) for level in (LEVEL, *LEVELS))
        terms = self.scale(metric, weights)
        half = np.asarray(np.exp(self.design.values(terms)) * reach, dtype=np.float64)
        return HalfWidths(half, reach, tuple(reaches), terms)


def fit_pairs(cells: Sequence[Measured]) -> dict[str, Any]:
    """Return the statistics for pairs; empty if there are too few."""
    data = PairData.of(cells)
    if not data.pairs:
        return {}
    everything = np.ones(len(data.pairs), dtype=bool)
    found: dict[str, Any] = {"kinds": dict(sorted(Counter(pair.kind for pair in data.pairs).items())), "folds": {}}
    for what in FOLDS:
        terms: dict[str, list[float]] = {}
        reaches, levels = {}, {}
        for column, metric in enumerate(METRICS):
            widths = data.half_widths(metric, what, everything)
            reaches[metric] = round(widths.reach, 3)
            known = [value for value in widths.reaches if not np.isnan(value)]
            levels[metric] = [round(known[min(i, len(known) - 1)], 3) for i in range(len(LEVELS))] if known else []
            for name, value in zip(data.design.names, widths.terms, strict=True):
                terms.setdefault(name, [0.0] * len(METRICS))[column] = round(float(value), 3)
        if all(np.isfinite(list(reaches.values()))):
            found["folds"][what] = {"terms": dict(sorted(terms.items())), "quantile": reaches, "levels": levels}
    return found


def judge_pairs(cells: Sequence[Measured], what: str, seed: int = 0) -> dict[str, Any]:
    """Return the performance of ratio intervals on left-out pairs. It has the coverage by metric, with intervals from
    resampled pairs of deployments. For prices per output token, it also has how often an interval excludes 1, and how
    often it then names the cheaper one."""
    data = PairData.of(cells)
    times = scores.resampled(scores.numbered([pair.names for pair in data.pairs]), seed, f"pairs {what}")
    weights = times * data.weights
    found: dict[str, Any] = {"pairs": len(data.pairs), "deployments": len({pair.names for pair in data.pairs})}
    everything = np.ones(len(data.pairs), dtype=bool)
    for metric in METRICS:
        half = np.full(len(data.pairs), np.nan)
        for fold in data.folds(what, everything):
            if not fold.barred.all():
                half[fold.predicted] = data.half_widths(metric, what, ~fold.barred).half[fold.predicted]
        known = np.isfinite(half)
        inside = np.where(known, data.sizes(metric) <= half, 0.0).astype(np.float64)
        found[metric] = {
            "coverage": scores.estimate(scores.mean(inside, weights * known)),
            "half_width": float(scores.median(np.sinh(half[known]), data.weights[known][None])[0]),
        }
        if metric == "e2e":
            found["cheaper"] = _cheaper(data, half, weights)
    return found


def _cheaper(data: PairData, half: Floats, weights: NDArray[np.float64]) -> dict[str, Any]:
    """Return how often the interval of the price ratio excludes 1, and how often it is then right."""
    ours = np.array([pair.cheaper for pair in data.pairs])
    measured = ours + np.array([pair.residual("e2e") for pair in data.pairs])
    decided = np.isfinite(half) & (np.abs(ours) > half)
    right = (np.sign(ours) == np.sign(measured)).astype(np.float64)
    return {
        "right_of_all": scores.estimate(scores.mean(right, weights)),
        "decided": scores.estimate(scores.mean(decided.astype(np.float64), weights)),
        "right_of_decided": scores.estimate(scores.mean(right, weights * decided)),
        "decided_pairs": int(decided.sum()),
    }
