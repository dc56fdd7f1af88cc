"""Fitted error statistics: for a case, how far measured servers would be from its simulation.

`fitted.json` is written by `servesim calibrate intervals`; it also records the data it was fitted to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from servesim.intervals.case import METRICS, Case, features
from servesim.intervals.distance import DEPLOYMENT, Kind, kind_of

SCHEMA = "servesim.intervals/1"
FILE = "fitted.json"
PARTS = ("location", "scale")
"""Parts of a feature's terms; each part has one term per metric."""
SHARES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975)
"""Shares of measured servers at which quantiles are stored."""
SPREADS = 2.0
"""Weight of the scale in an expected error."""
WORST = 0.1
"""Share of measured cells that count as the worst."""
LEVEL = 0.8
"""Share of measured servers inside an interval: a tenth lies beyond each end."""


@dataclass(frozen=True)
class Factors:
    """The distribution of the ratio of measured to simulated values for one metric of one case."""

    location: float
    """Location of the logarithm of the ratio."""
    scale: float
    """Scale of the logarithm of the ratio."""
    quantiles: tuple[float, ...]
    """Quantiles at SHARES, in units of the scale."""
    wider: tuple[float, float] = (1.0, 1.0)
    """Factors by which the logarithms of the low and the high end lie farther from the median's than for a server that
    was measured."""

    @property
    def expected(self) -> float:
        """Expected size of the logarithm of the ratio, from its location and `SPREADS` scales."""
        return math.hypot(self.location, SPREADS * self.scale)

    def at(self, share: float) -> float:
        """Return the factor below which the given share of servers lies; shares are clamped to the range of SHARES."""
        z, median = (float(np.interp(one, SHARES, self.quantiles)) for one in (share, 0.5))
        farther = (self.wider[share > 0.5] - 1.0) * (z - median)
        return math.exp(self.location + self.scale * (z + farther))


@dataclass(frozen=True)
class Fitted:
    """Error statistics by kind of distance and metric."""

    document: Mapping[str, Any]

    @property
    def known(self) -> Mapping[str, Sequence[str]]:
        """The measured values of each label."""
        found: Mapping[str, Sequence[str]] = self.document["known"]
        return found

    def kind_of(self, case: Case) -> tuple[Kind | None, str]:
        """Return how far a case is from the measured ones, or None and the reason if it is too far."""
        kind, why = kind_of(case, self.known)
        if kind is not None and kind.name not in self.document["kinds"]:
            return None, f"{kind.says}, and too few of these servers were measured to estimate the error"
        return kind, why

    def factors(self, case: Case, kind: Kind, metric: str) -> Factors:
        """Return the distribution of measured over simulated values of `metric` for a case."""
        fitted = self.document["kinds"][kind.name]
        terms, none = fitted["terms"], (0.0,) * (len(PARTS) * len(METRICS))
        rows = [terms.get(name, none) for _, name in features(case)]
        column = METRICS.index(metric)
        location, log_scale = (
            math.fsum(row[part * len(METRICS) + column] for row in rows) for part in range(len(PARTS))
        )
        return Factors(location, math.exp(log_scale), tuple(fitted["quantiles"][metric]), self._wider(case, metric))

    def unseen(self, case: Case) -> Mapping[str, Any] | None:
        """Return the statistics of left-out laboratories for a case of an unseen one; None if there are none."""
        found: Mapping[str, Any] | None = None if case.measured else self.document.get("laboratories")
        return found

    def doubt(self, case: Case) -> Mapping[str, Any] | None:
        """Return the statistics of doubtful cases if a case is one: measured servers like it were far off more often
        than others. None if it is not, or if there are none. They are of deployments that were left out, so a case of
        any kind is compared by the terms of that kind."""
        known: Mapping[str, Any] | None = self.document.get("doubts")
        if known is None or self.factors(case, DEPLOYMENT, known["by"]).expected <= known["above"]:
            return None
        return known

    def _wider(self, case: Case, metric: str) -> tuple[float, float]:
        unseen = self.unseen(case)
        if unseen is None:
            return 1.0, 1.0
        ends = unseen["wider"][case.crowd][metric]
        return ends["low"], ends["high"]

    def coverage(self, case: Case, kind: Kind, metric: str) -> Mapping[str, float] | None:
        """Return the share of held-out results inside their intervals, and the 95 % interval of that share: of left-out
        laboratories if the case is one of an unseen laboratory, else of cells left out as `kind` says. None if it was
        not evaluated."""
        unseen = self.unseen(case)
        if unseen is not None:
            left_out: Mapping[str, Any] = unseen.get("coverage", {})
            return left_out.get(metric)
        judged: Mapping[str, Any] = self.document.get("judged", {})
        found: Mapping[str, float] | None = judged.get(kind.name, {}).get(metric, {}).get("coverage")
        return found


@cache
def shipped() -> Fitted:
    """Return the statistics that ship with servesim."""
    text = resources.files("servesim.intervals").joinpath(FILE).read_text(encoding="utf-8")
    return Fitted(json.loads(text))
