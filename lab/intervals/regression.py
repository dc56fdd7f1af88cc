"""Additive terms by group, each shrunk toward 0 if few deployments support it: a ridge regression.

The value of a case is the sum of the terms of its `features`. The term of a group without training cells is 0, so a
case of an unknown model is predicted from the features that it shares with known ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.intervals.case import Case, features

Floats = NDArray[np.float64]

ROUNDS = 3
"""Number of reweightings for the Huber loss."""
HUBER = 1.5
"""Threshold in median absolute residuals (scaled to a normal distribution); larger residuals contribute only their
sign."""


@dataclass(frozen=True)
class Design:
    """Terms (columns) of each case (row), and the penalties on their squares."""

    names: tuple[str, ...]
    has: Floats
    """Matrix (n, terms) of 0 or 1."""
    penalty: Floats
    """Penalties (terms), in deployments: a group with as many deployments as its penalty keeps half of its mean."""

    @classmethod
    def of(cls, cases: Sequence[Case], penalties: Mapping[str, float]) -> Design:
        """Build the design of cases from the kinds of features that have a penalty."""
        return cls.of_features([features(case) for case in cases], penalties)

    @classmethod
    def of_features(cls, rows: Iterable[Iterable[tuple[str, str]]], penalties: Mapping[str, float]) -> Design:
        """Build the design from rows of (kind, name)."""
        found = [[(kind, name) for kind, name in row if kind in penalties] for row in rows]
        kinds = {name: kind for row in found for kind, name in row}
        names = tuple(sorted(kinds))
        place = {name: i for i, name in enumerate(names)}
        has = np.zeros((len(found), len(names)))
        for i, row in enumerate(found):
            has[i, [place[name] for _, name in row]] = 1.0
        return cls(names, has, np.array([penalties[kinds[name]] for name in names]))

    def fit(self, y: Floats, weights: Floats) -> Floats:
        """Return the terms (terms) that fit y (n) under a Huber loss; rows of weight 0 are ignored."""
        used = weights > 0
        has, y, weights = self.has[used], y[used], weights[used]
        robust: Floats = np.ones(len(y))
        terms: Floats = np.zeros(len(self.names))
        for _ in range(ROUNDS):
            w = weights * robust
            terms = np.asarray(
                np.linalg.solve((has.T * w) @ has + np.diag(self.penalty), (has.T * w) @ y), dtype=np.float64
            )
            size = np.abs(y - has @ terms)
            bound = HUBER * 1.4826 * max(float(np.median(size)), 1e-6)
            robust = np.minimum(1.0, bound / np.maximum(size, 1e-12))
        return terms

    def values(self, terms: Floats) -> Floats:
        """Return the sums of terms (n)."""
        return np.asarray(self.has @ terms, dtype=np.float64)
