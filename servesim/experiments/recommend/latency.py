"""Search for the least latency for a price, at the rate of the question.

Each deployment has as many replicas as fit in the budget. A single run gives its latency, so nothing is bisected: short
runs try the structures, and the best ones are improved by one flag at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np

from servesim.experiments.axes import Variant
from servesim.experiments.recommend.aims import Aim
from servesim.experiments.recommend.answer import Story
from servesim.experiments.recommend.lengths import Length
from servesim.experiments.recommend.race import Entrant, Race
from servesim.experiments.recommend.search import CLIMBERS, FINALISTS, GAIN, PASSES, Search


class LatencyRace(Race):
    """Race whose prices are latencies in ms at the rate of the question; infinity for a missed SLO."""

    def measure(self, starts: Sequence[tuple[Entrant, float]], tolerance: float) -> None:
        """Run deployments once each, since the latency at a load needs no search."""
        for (e, load), carried in zip(starts, self.carried(starts), strict=True):
            outcomes = self.study.outcomes.get((e.variant.label, load), ())
            ms = [outcome.values[self.aim.metric] for outcome in outcomes]
            self.prices[e.variant.label] = float(np.mean(ms)) if carried else math.inf

    def improved(self, head: Entrant, neighbors: Callable[[Entrant, Race], Sequence[Entrant]], passes: int) -> Entrant:
        """Return a deployment after up to `passes` changes, each the best single one that lowers the latency by more
        than `GAIN`."""
        for _ in range(passes):
            rivals = [e for e in neighbors(head, self) if e.variant.label not in self.prices]
            self.measure([(e, self.aim.rate_at(0.0)) for e in rivals], GAIN)
            best = min(rivals, key=self.rank, default=head)
            if self.prices[best.variant.label] >= self.prices[head.variant.label] * (1 - GAIN):
                break
            head = best
        return head


class LatencySearch(Search):
    """Search for the least latency within a budget."""

    def run(self) -> tuple[list[Variant], Story]:
        """Search. Return the deployments to compare at full length, and the story of the search. Raise UserError if
        nothing in the space runs within the budget."""
        q, entrants = self._q, self._entrants()
        screening, fine = self.race(q.scout, q.aim), self.race(q.climb, q.aim)
        kept, heads = self._screened(screening, entrants)
        heads = self._improved(screening, heads, self._with_flags, 1)
        heads = self._improved(screening, self._few(heads, screening, CLIMBERS), self._with_flags, PASSES)
        heads = self._improved(screening, heads, self._with_features, 1)
        best = self._few(heads, screening, FINALISTS)
        fine.measure([(e, self._start(fine, e)) for e in best], GAIN)
        best = sorted(best, key=fine.rank)
        return self._told(
            best, Story(q.space, q.aim, q.goals, screening, screening, fine, entrants, kept, {}, self._refused)
        )

    def race(self, length: Length, aim: Aim) -> LatencyRace:
        """Return a race of runs of one length."""
        one = super().race(length, aim)
        return LatencyRace(**{field.name: getattr(one, field.name) for field in fields(one)})

    def _improved(
        self,
        race: LatencyRace,
        heads: Sequence[Entrant],
        neighbors: Callable[[Entrant, Race], Sequence[Entrant]],
        passes: int,
    ) -> list[Entrant]:
        return sorted((race.improved(head, neighbors, passes) for head in heads), key=race.rank)

    def _start(self, race: Race, e: Entrant) -> float:
        return race.aim.rate_at(0.0)
