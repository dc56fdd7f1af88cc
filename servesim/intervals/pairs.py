"""Two cases under one workload: how far the measured ratio is from the simulated one.

Errors common to both cancel, so a ratio is known more precisely than either value. It is never derived from the
difference of two intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.intervals.case import METRICS, Case
from servesim.intervals.distance import label
from servesim.intervals.fitted import Fitted

WORDS = {
    "size": "two sizes of one server",
    "precision": "two weight formats",
    "version": "two versions of an engine",
    "engine": "two engines",
}
"""Differences between the cases of a pair."""
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of measured pairs whose ratio is off by at most the stored multiples of the scale."""


def kind_of_pair(a: Case, b: Case) -> tuple[str, str]:
    """Return the kind of difference between two cases, or the reason why no measured pair is comparable; both are empty
    if the cases are the same deployment."""
    if (a.model, a.gpu) != (b.model, b.gpu):
        return "", "no measured pairs have different models or GPUs"
    names = []
    if a.engine != b.engine:
        names.append("engine")
    elif a.version != b.version:
        names.append("version")
    if a.precision != b.precision:
        names.append("precision")
    if (a.tp, a.ep) != (b.tp, b.ep):
        names.append("size")
    if len(names) > 1:
        return "", f"no measured pairs differ in both {' and '.join(names)}"
    return (names[0] if names else ""), ""


def pair_features(kind: str, a: Case, b: Case) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of all features that a pair may share with others, regardless of the order of its cases."""
    engines = " ".join(sorted({a.engine, b.engine}))
    yield "all", "all:"
    yield "pair", f"pair: {kind}"
    yield "engines", f"engines: {engines}"
    yield "pair engines", f"pair engines: {kind} {engines}"
    yield "short", f"short: {a.short + b.short}"
    yield "model", f"model: {a.model}"
    for load in sorted({a.load, b.load}):
        yield "load", f"load: {load}"


@dataclass(frozen=True)
class Spread:
    """How far a measured ratio may lie from the simulated one."""

    kind: str
    factor: float
    """Factor of at least 1 such that eight of ten measured ratios lie between the simulated ratio divided by it and the
    simulated ratio multiplied by it."""
    says: str
    by_level: tuple[float, ...]
    """Factors at LEVELS."""

    def beyond(self, factor: float) -> float:
        """Return the share of measured pairs whose ratio exceeds the simulated one by more than `factor` (at least 1).
        The share is one-sided: one half at factor 1, and never less than (1 - the last of LEVELS) / 2."""
        halves = (0.0, *(math.log(one) for one in self.by_level))
        level = float(np.interp(math.log(factor), np.maximum.accumulate(halves), (0.0, *LEVELS)))
        return (1 - level) / 2


def spread(fitted: Fitted, a: Case, b: Case, metric: str) -> Spread | str:
    """Return the spread of the ratio of `metric` of two cases, or the reason why none is known."""
    document: Mapping[str, Any] = fitted.document.get("pairs", {})
    kind, why = kind_of_pair(a, b)
    if why:
        return why
    if not kind:
        return "no two measured servers differ only in this, so the error of the ratio is not known"
    for one in (a, b):
        for name in ("engine", "precision", "gpu"):
            if label(one, name) not in fitted.known[name]:
                return f"no server with {name} {label(one, name)} was measured"
    if kind not in document.get("kinds", ()):
        return f"too few pairs of {WORDS[kind]} were measured"
    new = any(label(one, name) not in fitted.known[name] for one in (a, b) for name in ("model", "version"))
    fold = "model" if new else "deployment"
    found = document["folds"][fold]
    column = METRICS.index(metric)
    log_scale = math.fsum(found["terms"].get(name, (0.0,) * 3)[column] for _, name in pair_features(kind, a, b))
    scale = math.exp(log_scale)
    of = "models" if new else "servers"
    factor, *by_level = (math.exp(scale * one) for one in (found["quantile"][metric], *found["levels"][metric]))
    return Spread(kind, factor, f"from pairs of {WORDS[kind]}, with {of} held out", tuple(by_level))
