"""Race of deployments on common random numbers: each challenger runs once, at the load at which it would beat the best
so far, and only a winner of that run is measured more precisely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from servesim.experiments.axes import Variant
from servesim.experiments.capacity_study import Study
from servesim.experiments.limit_search import RateSearch
from servesim.experiments.outcome import Judged
from servesim.experiments.recommend.aims import Aim
from servesim.experiments.recommend.lengths import Length, early_misses
from servesim.experiments.recommend.space import Point

NEAR = 1.2
"""Ratio to the best price up to which a structure is improved flag by flag."""
ROUNDS = 12
"""Maximum number of loads tried to measure one deployment."""
NEXT_TO_NOTHING = 0.001
"""Share of the most that a deployment can carry by the cost model. If not even that is carried, neither is what
`ROUNDS` loads lead to, from half of the most: a 1,360th of it."""


@dataclass(frozen=True)
class Entrant:
    """A deployment in the race."""

    point: Point
    variant: Variant
    bound: float = 0.0
    """Lowest price that it can have, from the cost model alone."""

    @property
    def replicas(self) -> int:
        """Number of replicas of its point."""
        return int(self.point.get("replicas") or 1)

    def run(self, length: Mapping[str, Any]) -> Variant:
        """Return the deployment with the settings of a run."""
        return replace(self.variant, settings={**self.variant.settings, **length})


@dataclass
class Race:
    """Runs of one length, and the prices found by them."""

    study: Study
    aim: Aim
    length: Length = field(default_factory=Length)
    most_rate: float = math.inf
    """Highest rate at which runs tell anything: above it, a log ends before a deployment is full."""
    prices: dict[str, float] = field(default_factory=dict)
    """Prices by label; infinity for a deployment that carried none of the loads tried."""
    runs: int = 0
    """Number of deployments run at a load."""
    early: Study | None = None
    """Study of the first parts of runs."""
    lost: set[tuple[str, float]] = field(default_factory=set)
    """Labels and loads that the first parts of their runs have settled: they are not carried."""

    def price(self, e: Entrant) -> float:
        """Return the price that was found for a deployment, or infinity."""
        return self.prices.get(e.variant.label, math.inf)

    def rank(self, e: Entrant) -> tuple[float, ...]:
        """Return the sort key of a deployment that was measured, best first."""
        return self.aim.rank(e.variant, self.price(e))

    def carried(self, asked: Sequence[tuple[Entrant, float]]) -> list[bool]:
        """Run deployments, each at a load. Return whether they carry it within the SLO."""
        told = [(e, load) for e, load in asked if self.aim.rate_at(load) <= self.most_rate]
        new = [(e, load) for e, load in told if self._open(e, load)]
        self._lose(new)
        left = [(e, load, self.length.settings(self.aim.rate_at(load))) for e, load in new if self._open(e, load)]
        wanted = [(e.run(length), load) for e, load, length in left]
        if wanted:
            self.runs += len(wanted)
            self.study.run_at(self.aim.key, wanted)
        return [self._yes(e, load) for e, load in asked]

    def seen(self) -> dict[tuple[str, float], Judged]:
        """Return what every run told, by label and load: of its first part if that settled it."""
        early = self.early.judged if self.early is not None else {}
        return {**{one: early[one] for one in self.lost}, **self.study.judged}

    def _open(self, e: Entrant, load: float) -> bool:
        label = e.variant.label
        failed = label in self.study.errors or (self.early is not None and label in self.early.errors)
        return not failed and (label, load) not in self.study.judged and (label, load) not in self.lost

    def _lose(self, asked: Sequence[tuple[Entrant, float]]) -> None:
        """Run the first part of each run. Record the deployments that already miss the SLO more often in it than they
        may in the whole run."""
        if self.early is None:
            return
        early = [(e, load, self.length.early(self.aim.rate_at(load))) for e, load in asked]
        wanted = [(e.run(length), load) for e, load, length in early if length]
        if not wanted:
            return
        self.runs += len(wanted)
        self.early.run_at(self.aim.key, wanted)
        whole = self.study.measuring
        most = [early_misses(goal.share, whole.ends) for goal in whole.goals]
        for v, load in wanted:
            judged = self.early.judged.get((v.label, load))
            if judged and any(1 - share > may for share, may in zip(judged.shares, most, strict=True)):
                self.lost.add((v.label, load))

    def _yes(self, e: Entrant, load: float) -> bool:
        judged = self.study.judged.get((e.variant.label, load))
        if judged is None:
            return False
        return judged.margin_low >= 0 if self.length.short(self.aim.rate_at(load)) else judged.carried

    def beat(self, entrants: Sequence[Entrant], price: float) -> list[tuple[Entrant, float]]:
        """Return the deployments that cost less than a price, each with a load that it carries at a lower one."""
        return self.passed([(e, self.aim.load(e.variant, price)) for e in entrants if e.bound < price])

    def passed(self, asked: Sequence[tuple[Entrant, float | None]]) -> list[tuple[Entrant, float]]:
        """Run deployments, each at a load unless it has none. Return those that carry it, with the load."""
        loads = [(e, load) for e, load in asked if load]
        return [one for one, yes in zip(loads, self.carried(loads), strict=True) if yes]

    def measure(self, starts: Sequence[tuple[Entrant, float]], tolerance: float) -> None:
        """Find the prices of deployments, each from a load near its limit."""
        searches = [(e, self.aim.search(e.variant, load, tolerance)) for e, load in starts]
        known = sorted(self.seen())
        for e, search in searches:
            for label, load in known:
                if label == e.variant.label and isinstance(search, RateSearch):
                    search.tell(load, self._yes(e, load))
        for _ in range(ROUNDS):
            asked = [(e, float(at), s) for e, s in searches if (at := s.next()) is not None]
            if not asked:
                break
            done = self.carried([(e, load) for e, load, _ in asked])
            for (_, load, search), yes in zip(asked, done, strict=True):
                search.tell(load, yes)
        for e, search in searches:
            self.prices[e.variant.label] = self.aim.price(e.variant, search.found) if search.found else math.inf

    def improved(
        self, heads: Sequence[Entrant], challengers: Sequence[Sequence[Entrant]], gain: float
    ) -> list[Entrant]:
        """Return the best of each head and its challengers, which must lower its price by more than `gain`. A round
        measures the strongest challenger of each head and runs the others at its price, so that few of them are
        measured."""
        best, left = list(heads), [[*each] for each in challengers]
        while any(left):
            asked = list[tuple[Entrant, float | None]]()
            for head, rivals in zip(best, left, strict=True):
                price = self.price(head) * (1 - gain)
                asked += [(e, self.aim.load(e.variant, price)) for e in rivals if e.bound < price]
            won = {e.variant.label: load for e, load in self.passed(asked)}
            margins = {label: self.study.judged[label, load].margin for label, load in won.items()}
            starts = list[tuple[Entrant, float]]()
            for i, rivals in enumerate(left):
                left[i] = [e for e in rivals if e.variant.label in won]
                if left[i]:
                    best[i] = max(left[i], key=lambda e: margins[e.variant.label])
                    left[i].remove(best[i])
                    starts.append((best[i], won[best[i].variant.label]))
            self.measure(starts, gain)
        return best


class LatencyRace(Race):
    """Race whose prices are latencies in ms at the rate of the question; infinity for a missed SLO. A single run gives
    the latency, so nothing is bisected."""

    def measure(self, starts: Sequence[tuple[Entrant, float]], tolerance: float) -> None:
        for (e, load), carried in zip(starts, self.carried(starts), strict=True):
            outcomes = self.study.outcomes.get((e.variant.label, load), ())
            ms = [outcome.values[self.aim.metric] for outcome in outcomes]
            self.prices[e.variant.label] = float(np.mean(ms)) if carried else math.inf

    def improved(
        self, heads: Sequence[Entrant], challengers: Sequence[Sequence[Entrant]], gain: float
    ) -> list[Entrant]:
        self.measure([(e, self.aim.rate_at(0.0)) for each in challengers for e in each], gain)
        best = [min(each, key=self.rank, default=head) for head, each in zip(heads, challengers, strict=True)]
        better = [self.price(e) < self.price(head) * (1 - gain) for head, e in zip(heads, best, strict=True)]
        return [e if yes else head for head, e, yes in zip(heads, best, better, strict=True)]


def screen(race: Race, entrants: Sequence[Entrant], batch: int) -> list[Entrant]:
    """Return the deployments whose price is at most `NEAR` times the best, best first, from all of them in the order of
    their bounds. Those whose bound alone is higher are not run. Once a batch carries nothing, deployments of the next
    ones are measured only if they carry next to nothing."""
    best, left = math.inf, sorted(entrants, key=lambda e: e.bound)
    kept: list[Entrant] = []
    vain = False
    while left:
        left = [e for e in left if e.bound <= NEAR * best]
        now, left = left[:batch], left[batch:]
        if not now:
            break
        if best == math.inf:
            hopeful = now
            if vain:
                least = [(e, race.aim.load(e.variant, e.bound / NEXT_TO_NOTHING)) for e in now if e.bound < math.inf]
                hopeful = [e for e, _ in race.passed(least)]
            race.measure([(e, load) for e in hopeful if (load := race.aim.load(e.variant, 2 * e.bound))], 0.1)
            kept += [e for e in now if race.price(e) < math.inf]
            vain = not kept
        else:
            starts = race.beat(now, NEAR * best)
            race.measure(starts, 0.1)
            kept += [e for e, _ in starts]
        best = min(map(race.price, kept), default=math.inf)
    kept = [e for e in kept if race.price(e) <= NEAR * best]
    return sorted(kept, key=lambda e: (race.price(e), e.bound))


def climb(
    race: Race,
    starts: Sequence[Entrant],
    neighbors: Callable[[Entrant, Race], Sequence[Entrant]],
    gain: float,
    passes: int,
) -> list[Entrant]:
    """Improve deployments, all in step, by the best single change that lowers the price by more than `gain`, until
    none does or `passes` are over. Return them, best first."""
    heads, tried = list(starts), set[str]()
    for _ in range(passes):
        asked: list[list[Entrant]] = []
        for head in heads:
            asked.append([e for e in neighbors(head, race) if e.variant.label not in tried])
            tried |= {e.variant.label for e in asked[-1]}
        improved = race.improved(heads, asked, gain)
        if improved == heads:
            break
        heads = improved
    return sorted(heads, key=race.rank)
