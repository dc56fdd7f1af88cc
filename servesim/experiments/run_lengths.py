"""Lengths of the runs of a capacity question: long enough for the share of requests that it asks about and for its
queue, with short runs first to find the rates worth running at full length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from servesim.experiments.axes import Variant
from servesim.experiments.goals import Goal
from servesim.experiments.replicates import MARGIN
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, open_scenario

COUNTED = 1 - 2 * MARGIN
"""Share of the arrivals that count by default."""
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
    def of(
        cls,
        variants: Sequence[Variant],
        goals: Sequence[Goal],
        by_rate: bool,
        kept: float = COUNTED,
        near: Mapping[str, float] = MappingProxyType({}),
    ) -> Self:
        """Return the lengths for a question about the highest rate (`by_rate`), or about the number of replicas. `kept`
        is the share of the arrivals that count. If the rates that are `near` the answers are known, no short runs look
        for them."""
        one, traces = Scenario.of(variants[0].settings), [str(v.settings.get("trace")) for v in variants]
        alike = len({repr([v.settings.get(key) for key in ("requests", "shape", "stream")]) for v in variants})
        if alike > 1 or one.stream or not all(trace.startswith(DRAWN) for trace in traces):
            return cls([None])
        if one.requests is None and not one.shape and all(trace.startswith("synth:") for trace in traces):
            fewest = fewest_requests(goals, kept)
            return cls(_scouted(fewest, fewest if by_rate and not near else 0), lengthened=True)
        if not by_rate or near or len({*traces}) > 1:
            return cls([one.requests])
        return cls(_scouted(one.requests, one.requests or len(open_scenario(one.model_copy(update={"rate": None})))))

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


def fewest_requests(goals: Sequence[Goal], kept: float = COUNTED) -> int:
    """Return the number of requests of which `MISSES` may miss the strictest goal, if the share `kept` of them
    counts."""
    missed = min(1 - goal.share for goal in goals) * kept
    if missed * MOST <= MISSES:
        return MOST
    return max(100 * math.ceil(MISSES / missed / 100 - 1e-6), FEWEST)


def more_requests(rows: Sequence[Mapping[str, Any]], done: int) -> int | None:
    """Return a length that may settle what runs of `done` requests do not: whether a queue is stable, or a rate to
    within `WIDE`. Return None if nothing is open or if `MOST` requests have been run or would not tell."""
    carried = [row for row in rows if row["verdict"] == "carries"]
    enough = max((row["enough_requests"] or 0 for row in carried), default=0)
    wide = any(row["rate_high"] is not None and row["rate_high"] > WIDE * row["rate_low"] for row in carried)
    endless = any(row["verdict"] == "no limit" for row in rows)
    if not (wide or endless or 0 < enough <= MOST) or done >= MOST:
        return None
    return min(max(enough, 2 * done), MOST)
