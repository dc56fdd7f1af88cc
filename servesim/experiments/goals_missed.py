"""Variants of a comparison that miss the SLO, reported before any of them is called better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from servesim.experiments.goals import Goal
from servesim.experiments.named import several


class Miss(NamedTuple):
    """Goal that a variant misses by the widest margin."""

    goal: str
    """Goal in words."""
    share: float
    """Share of good requests, averaged over the runs."""


def worst_miss(goals: Sequence[Goal], shares: Sequence[Sequence[float]]) -> Miss | None:
    """Return the goal missed by the widest margin, given the shares by run and goal, or None if all goals are met."""
    if not goals or not shares:
        return None
    means = np.mean(shares, axis=0)
    at = int(np.argmin(means - [goal.share for goal in goals]))
    return None if means[at] >= goals[at].share else Miss(goals[at].text, float(means[at]))


def missed_text(misses: Mapping[str, Miss | None]) -> list[str]:
    """Return a list with a sentence on the variants that miss the SLO, or an empty list if all meet it. `misses` is
    by label."""
    missing = {label: miss for label, miss in misses.items() if miss is not None}
    if not missing:
        return []
    goals = dict.fromkeys(miss.goal for miss in missing.values())
    who = "no variant meets" if len(missing) == len(misses) > 1 else f"{next(iter(missing))} misses"
    if len(missing) > 1 and len(missing) < len(misses):
        who = f"{len(missing)} of {len(misses)} variants miss"
    shares = several([f"{label} {100 * miss.share:.1f} %" for label, miss in missing.items()])
    return [f"{who} the SLO ({'; '.join(goals)}): {shares}"]
