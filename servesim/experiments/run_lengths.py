"""Lengths of the runs of a capacity question: long enough for the share of requests that it asks about and for its
queue, with short runs first to find the rates worth running at full length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from servesim.experiments.axes import Variant
from servesim.experiments.goals import Goal
from servesim.experiments.replicates import MARGIN
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, open_scenario

MISSES = 20
"""Minimum number of requests per run that may miss the SLO at the highest rate; their number then varies by less than a
quarter by chance alone."""
FEWEST, MOST = 1_000, 20_000
"""Minimum and maximum length to choose, in requests."""
WIDE = 1.25
"""Ratio of an interval's ends above which longer runs are worth their time."""
SCOUTS, SCOUTED = 8, 2_000
"""Factor by which the runs that find the neighborhood of a rate are shorter, and the length from which they pay."""


class RunLengths:
    """Lengths to run a question at, one after another, until the answer is as sure as it can be made.

    The user's own length, a recorded log and the lap of a preset are kept. Only a synthetic workload of no stated
    length is lengthened.
    """

    def __init__(self, lengths: Sequence[int | None], lengthened: bool = False) -> None:
        self._lengths, self._lengthened = list(lengths), lengthened

    @classmethod
    def of(cls, variants: Sequence[Variant], goals: Sequence[Goal], by_rate: bool) -> Self:
        """Return the lengths for a question about the highest rate (`by_rate`), or about the number of replicas."""
        one = Scenario.of(variants[0].settings)
        alike = len({repr([v.settings.get(key) for key in ("trace", "requests", "shape", "stream")]) for v in variants})
        if alike > 1 or one.stream or not one.trace.startswith(DRAWN):
            return cls([None])
        if one.requests is None and one.trace.startswith("synth:") and not one.shape:
            fewest = fewest_requests(goals)
            return cls(_scouted(fewest, fewest if by_rate else 0), lengthened=True)
        asked = one.requests or len(open_scenario(one.model_copy(update={"rate": None})))
        return cls(_scouted(one.requests, asked if by_rate else 0))

    @property
    def now(self) -> int | None:
        """Length of the next runs in requests, or None for the whole trace."""
        return self._lengths[0]

    def sized(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return the variants with runs of the current length."""
        if self.now is None:
            return list(variants)
        return [replace(v, settings={**v.settings, "requests": self.now}) for v in variants]

    def longer(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Move to the next length if these answers need it. Return whether they do."""
        done = self._lengths.pop(0)
        if self._lengths:
            return True
        more = more_requests(rows, done) if self._lengthened and done is not None else None
        self._lengths.append(done if more is None else more)
        return more is not None


def _scouted(last: int | None, requests: int) -> list[int | None]:
    """Return the last length, behind that of the scouts if runs of this number of requests are worth scouting for."""
    return [requests // SCOUTS, last] if requests >= SCOUTED else [last]


def fewest_requests(goals: Sequence[Goal]) -> int:
    """Return the number of requests of which `MISSES` may miss the strictest goal, outside the ends that are left
    out."""
    missed = min(1 - goal.share for goal in goals) * (1 - 2 * MARGIN)
    if missed * MOST <= MISSES:
        return MOST
    return max(100 * math.ceil(MISSES / missed / 100 - 1e-6), FEWEST)


def more_requests(rows: Sequence[Mapping[str, Any]], done: int) -> int | None:
    """Return the length that would settle what runs of `done` requests do not: whether a queue is stable, or a rate to
    within `WIDE`. Return None if nothing is open or if longer runs would take too long."""
    carried = [row for row in rows if row["verdict"] == "carries"]
    enough = max((row["enough_requests"] or 0 for row in carried), default=0)
    wide = any(row["rate_high"] is not None and row["rate_high"] > WIDE * row["rate_low"] for row in carried)
    endless = any(row["verdict"] == "no limit" for row in rows)
    if not (enough or wide or endless) or 2 * done > MOST:
        return None
    return min(max(enough, 2 * done), MOST)
