"""What a deployment has to reach: shares of requests within limits, jointly or each limit by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.errors import UserError
from servesim.experiments.run_metrics import Run, within
from servesim.metrics.slo import time_text
from servesim.run.scenario import Scenario

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Goal:
    """A share of the requests that must be within some limits."""

    limits: dict[str, float]
    """Milliseconds by metric; a request is good if it is within all of them."""
    share: float
    classes: dict[str, dict[str, float]]
    """Limits of classes that have their own."""

    def good(self, run: Run) -> Mask:
        """Return which requests of a run completed within the limits."""
        return within(run, self.limits, self.classes)

    @property
    def text(self) -> str:
        """The goal in words, such as "99 % of requests within TTFT 1 s and TPOT 50 ms"."""
        limits = [_limits_text(self.limits), *(f"{name} {_limits_text(own)}" for name, own in self.classes.items())]
        return f"{100 * self.share:g} % of requests within {'; '.join(filter(None, limits))}"


def _limits_text(limits: Mapping[str, float]) -> str:
    return " and ".join(f"{name.upper()} {time_text(limit)}" for name, limit in limits.items())


def goals_of(scenario: Scenario, attainment: float) -> list[Goal]:
    """Return the goals of a scenario's SLO: one for the limits that hold jointly, for a share of `attainment`, and one
    for each limit that has a percentile."""
    each = scenario.slo_percentiles
    if each and scenario.slo_classes:
        raise UserError("slo: percentiles and limits of classes do not go together; give both as plain limits")
    joint = {name: limit for name, limit in scenario.slo.items() if name not in each}
    goals = [Goal(joint, attainment, scenario.slo_classes)] if joint or scenario.slo_classes else []
    return [*goals, *(Goal({name: scenario.slo[name]}, p / 100, {}) for name, p in each.items())]


def header(goals: list[dict[str, Any]]) -> str:
    """Return goals as a document has them in words, with how they hold."""
    texts = [goal["text"] for goal in goals]
    several = len(goals) > 1 or len(goals[0]["limits"]) < 2
    how = "" if len(goals) == 1 and several else " (each by itself)" if several else " (jointly)"
    return "; ".join(texts) + how
