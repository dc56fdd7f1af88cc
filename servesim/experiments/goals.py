"""Goals of a deployment: shares of requests within limits, with limits applied jointly or separately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.run_metrics import Run, within
from servesim.metrics.slo import time_text
from servesim.run.scenario import Scenario

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Goal:
    """Share of requests that must be within certain limits."""

    limits: dict[str, float]
    """Limits in milliseconds by metric; a request is good if it is within all of them."""
    share: float
    classes: dict[str, dict[str, float]]
    """Limits of classes that have their own."""
    of: str | None = None
    """Class whose requests count, or None for all requests except those of the classes in `without`."""
    without: tuple[str, ...] = ()

    def good(self, run: Run) -> Mask:
        """Return a mask of the requests of a run that completed within the limits."""
        return within(run, self.limits, self.classes)

    def counted(self, run: Run, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the given rows that count toward the share."""
        if run.classes is None or (self.of is None and not self.without):
            return rows
        labels = np.array(run.classes)[rows]
        return rows[labels == self.of if self.of is not None else ~np.isin(labels, self.without)]

    @property
    def text(self) -> str:
        """Goal in words, such as "99 % of requests within TTFT 1 s and TPOT 50 ms"."""
        limits = [_limits_text(self.limits), *(f"{name} {_limits_text(own)}" for name, own in self.classes.items())]
        which = f"{self.of} requests" if self.of is not None else "other requests" if self.without else "requests"
        return f"{100 * self.share:g} % of {which} within {'; '.join(filter(None, limits))}"


def _limits_text(limits: Mapping[str, float]) -> str:
    return " and ".join(f"{name.upper()} {time_text(limit)}" for name, limit in limits.items())


def goals_of(scenario: Scenario, attainment: float) -> list[Goal]:
    """Return the goals of a scenario's SLO: one for the limits that apply jointly, which a share `attainment` of the
    requests must meet, and one for each limit that has a percentile, over all requests or those of one class. The
    general limits do not apply to classes with their own limits."""
    each, of_class = scenario.slo_percentiles, scenario.slo_class_percentiles
    joint = {name: limit for name, limit in scenario.slo.items() if name not in each}
    own = tuple(scenario.slo_classes)
    classes = {
        c: plain
        for c, limits in scenario.slo_classes.items()
        if (plain := {name: limit for name, limit in limits.items() if name not in of_class.get(c, {})})
    }
    without = tuple(c for c in own if c not in classes)
    goals = [Goal(joint, attainment, classes, without=without)] if joint or classes else []
    goals += [Goal({n: scenario.slo[n]}, p / 100, {}, without=own) for n, p in each.items()]
    for c, percentiles in of_class.items():
        goals += [Goal({n: scenario.slo_classes[c][n]}, p / 100, {}, of=c) for n, p in percentiles.items()]
    return goals


def header(goals: list[dict[str, Any]]) -> str:
    """Return goals in words for a document, stating whether they apply jointly or separately."""
    texts = [goal["text"] for goal in goals]
    several = len(goals) > 1 or len(goals[0]["limits"]) < 2
    how = "" if len(goals) == 1 and several else " (each by itself)" if several else " (jointly)"
    return "; ".join(texts) + how
