"""Search of one question, from bounds to finalists (recommend.py describes its stages)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.bounds import Work, alone_ns, optimistic_rate, too_long, tpot_limit
from servesim.experiments.capacity_study import Study
from servesim.experiments.recommend.aims import Aim, Headroom, LeastLatency, PriceForRate
from servesim.experiments.recommend.answer import Story
from servesim.experiments.recommend.lengths import EARLY, Length, horizon_s
from servesim.experiments.recommend.question import Question
from servesim.experiments.recommend.race import Entrant, LatencyRace, Race, climb, screen
from servesim.experiments.recommend.space import Choices, Point, changed, grid, measured
from servesim.experiments.replicates import replicates_of
from servesim.experiments.runner import Runner
from servesim.run.setup import Setup

HEADS = 4
"""Maximum number of structures that are improved flag by flag."""
CLIMBERS, FINALISTS = 2, 3
"""Maximum numbers of deployments that are improved by more than one flag, and that are compared at full length."""
PUBLISHED = 3
"""Maximum number of structures with the published formats that are measured only because they have these."""
GAIN = 0.01
"""Smallest gain for which a flag is changed."""
BATCH = 8
"""Number of structures that run at a time; a constant, so that results do not depend on the number of processes."""
COARSE = 0.1
"""Ratio at which a coarse search for a rate stops."""
PASSES, DRAWS = 2, 24
"""Maximum number of changes per deployment, and number of random changes tried afterwards."""


class Search:
    """Search of one question."""

    def __init__(self, question: Question, runner: Runner, draw: random.Random) -> None:
        self._q, self._runner, self._draw = question, runner, draw
        self._work = Work.of(question.trace)
        self._limit = tpot_limit(question.goals)

    def run(self) -> tuple[list[Variant], Story]:
        """Search. Return the deployments to compare at full length, and the story of the search. Raise UserError if
        nothing in the space runs."""
        q, (entrants, refused) = self._q, self._entrants()
        screening = coarse = self.race(q.scout, q.aim)
        kept = screen(screening, entrants, BATCH)
        heads = kept[:HEADS]
        if not any(map(self._published, heads)):
            heads += self._best_published(screening, entrants)
        aim = q.aim
        if isinstance(aim, PriceForRate):
            heads, aim = self._with_replicas(heads, screening), Headroom()
            coarse = self.race(q.scout, aim)
            coarse.measure([(e, q.rate) for e in heads], COARSE)
        coarse.measure([(e, self._start(coarse, e)) for e in heads], GAIN)
        heads = self._few(climb(coarse, heads, self._with_flags, GAIN, 1), coarse, CLIMBERS)
        heads = climb(coarse, heads, self._with_flags, GAIN, PASSES)
        heads = climb(coarse, heads, self._with_features, GAIN, 1)
        if not aim.metric:
            heads = [*climb(coarse, heads[:1], self._shaken, GAIN, 1), *heads[1:]]
        fine = self.race(q.climb, aim)
        best = self._few(heads, coarse, FINALISTS)
        fine.measure([(e, self._start(coarse, e)) for e in best], GAIN)
        best = sorted(best, key=fine.rank)
        final = {(v := self._final(e, fine)).label: (v, e) for e in best or self._closest(screening, entrants)}
        finalists = {label: e for label, (_, e) in final.items()}
        without = self._without(best[0], fine) if best else {}
        story = Story(q, screening, coarse, fine, entrants, kept, finalists, refused, without)
        return [v for v, _ in final.values()], story

    def _entrants(self) -> tuple[list[Entrant], dict[str, str]]:
        """Return the structures that run, and by label why others do not. Raise UserError if there are none."""
        space = self._q.space
        checked = [(space.variant(point).label, self._checked(point)) for point in space.structures()]
        entrants = [e for _, e in checked if isinstance(e, Entrant)]
        refused = {label: why for label, why in checked if isinstance(why, str)}
        if not entrants:
            why = Counter(refused.values() or ["no GPU is left"]).most_common(1)[0][0]
            raise UserError(f"recommend: no deployment of {space.base.get('model')} is possible: {why}")
        return entrants, refused

    def _closest(self, race: Race, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Return the structures that came closest to the SLO at some load, if none met it. Of those that are equally
        far from it, or never ran because their bounds exclude it, return those that serve a request alone fastest."""
        margins = dict[str, float]()
        for (label, _), judged in race.seen().items():
            margins[label] = max(judged.margin, margins.get(label, -math.inf))

        def rank(e: Entrant) -> tuple[float, float]:
            setup = self._q.space.set_up(e.point)
            alone = math.inf if isinstance(setup, str) else alone_ns(setup, self._work)
            return -margins.get(e.variant.label, -1.0), alone

        return sorted(entrants, key=rank)[:FINALISTS]

    def _best_published(self, race: Race, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Return the best structure with the published formats, however far it is from the best, if there is one."""
        own = [e for e in entrants if self._published(e)]
        if all(race.price(e) == math.inf for e in own):
            likely = sorted((e for e in own if e.variant.label not in race.prices), key=lambda e: e.bound)[:PUBLISHED]
            starts = [(e, race.aim.load(e.variant, 2 * e.bound)) for e in likely]
            race.measure([(e, load) for e, load in starts if load], COARSE)
        return sorted((e for e in own if race.price(e) < math.inf), key=race.rank)[:1]

    def _final(self, e: Entrant, race: Race) -> Variant:
        """Return a deployment whose runs replay a whole log or preset, or are as long as its rate asks for. If the
        question has a rate, it has no number of replicas, which `capacity` searches first."""
        price = race.price(e)
        load = race.aim.load(e.variant, price) if price < math.inf else None
        drop = {"replicas"} if isinstance(self._q.aim, PriceForRate | LeastLatency) else ()
        return self._q.space.variant(
            {key: value for key, value in e.point.items() if key not in drop},
            race.length.settings(race.aim.rate_at(load)) if load and not race.length.work else {},
        )

    def _with_replicas(self, heads: Sequence[Entrant], race: Race) -> list[Entrant]:
        """Return deployments with the number of replicas that each needs."""
        found = []
        for e in heads:
            replicas = race.aim.load(e.variant, race.price(e) * 1.001)
            point = {**e.point, "replicas": int(replicas or 1)}
            found.append(Entrant(point, self._q.space.variant(point)))
        return found

    def _few(self, heads: Sequence[Entrant], race: Race, most: int) -> list[Entrant]:
        """Return the best deployments, and the best one with the published formats if it is not among them."""
        known = [e for e in heads if race.price(e) < math.inf]
        best = known[:most]
        return best + ([e for e in known if self._published(e)][:1] if not any(map(self._published, best)) else [])

    def _published(self, e: Entrant) -> bool:
        return self._q.space.published(e.point)

    def race(self, length: Length, aim: Aim) -> Race:
        """Return a race of runs of one length."""
        q = self._q
        settings = {**q.space.base, "gpu": grid(q.space.axes["gpu"])[0], **length.settings(0.0)}
        repeats = replicates_of(settings, None if q.recorded else 1, self._runner.objects, q.terms.window, 5)
        measuring = q.terms.measuring(q.goals, repeats)
        ends = measuring.ends
        most = len(q.trace) / horizon_s(q.goals, self._work.output) if q.recorded else math.inf
        early = None
        if not q.recorded and EARLY * ends[0] < 1:
            early = Study(self._runner, [], replace(measuring, ends=(EARLY * ends[0], 0.0)))
        kind = LatencyRace if aim.metric else Race
        return kind(Study(self._runner, [], measuring), aim, length, max(most, q.rate), early=early)

    def _checked(self, point: Point) -> Entrant | str:
        """Return a deployment that may race, or the reason that it may not."""
        q, setup = self._q, self._q.space.set_up(point)
        if isinstance(setup, str):
            return setup
        if not q.terms.by_formula and not measured(setup):
            return "most of its GPU time would come from formulas (--by-formula accepts that)"
        if why := too_long(setup, q.trace, q.goals):
            return why
        sized = q.sized(point)
        return f"more than {q.aim}" if sized is None else self._bounded(sized, q.aim, setup)

    def _bounded(self, point: Point, aim: Aim, setup: Setup | None = None) -> Entrant:
        """Return a deployment with the bound of its price; `setup` is that of one replica of it."""
        v = self._q.space.variant(point)
        one = setup or self._q.space.set_up(point)
        if isinstance(one, str):
            return Entrant(point, v, math.inf)
        times = int(point.get("replicas") or 1) if setup is not None else 1
        return Entrant(point, v, aim.bound(v, times * optimistic_rate(one, self._work, self._limit)))

    def _start(self, race: Race, e: Entrant) -> float:
        return race.aim.load(e.variant, race.price(e)) or 1.0

    def _with_features(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return the deployments that differ from one in a setting of a feature, with its flags and without: a batch
        size that suits prompts and answers together may not suit a pool that serves answers alone."""
        flags = self._q.space.flags(head.point).keys() - self._q.space.own.keys()
        point = {key: value for key, value in head.point.items() if key not in flags}
        bare = Entrant(point, self._q.space.variant(point))
        heads = [head] if point == head.point else [head, bare]
        return [e for one in heads for e in self._changed(one, race, self._q.space.features(one.point))]

    def _with_flags(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return the deployments that differ from one in one flag."""
        return self._changed(head, race, self._q.space.flags(head.point))

    def _changed(self, head: Entrant, race: Race, values: Mapping[str, Choices]) -> list[Entrant]:
        each = [(key, value) for key, choices in values.items() for value in self._q.space.grid(key, choices)]
        points = [changed(head.point, key, value) for key, value in each if value != head.point.get(key)]
        found = [self._bounded(point, race.aim) for point in points]
        return [e for e in found if self._comparable(e, head, race)]

    def _comparable(self, e: Entrant, head: Entrant, race: Race) -> bool:
        """Return whether a deployment can be set up and be compared with another one."""
        return e.bound < math.inf and race.aim.admits(e.variant, head.variant)

    def _shaken(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return deployments that differ from one in one flag, or in several drawn at random."""
        values = {**self._q.space.features(head.point), **self._q.space.flags(head.point)}
        found = {e.variant.label: e for e in self._with_flags(head, race)}
        for _ in range(DRAWS):
            point = dict(head.point)
            for key in self._draw.sample(sorted(values), min(len(values), self._draw.choice((2, 3)))):
                point = changed(point, key, self._draw.choice(self._q.space.grid(key, values[key])))
            e = self._bounded(point, race.aim)
            if self._comparable(e, head, race):
                found[e.variant.label] = e
        found.pop(head.variant.label, None)
        return [*found.values()]

    def _without(self, first: Entrant, race: Race) -> dict[str, float]:
        """Measure a deployment without each of its flags. Return the prices by flag, as multiples of its own."""
        price = race.price(first)
        keys = first.point.keys() - self._q.space.axes.keys() - {"replicas"} if price < math.inf else ()
        points = {key: {k: v for k, v in first.point.items() if k != key} for key in sorted(keys)}
        entrants = {key: Entrant(point, self._q.space.variant(point)) for key, point in points.items()}
        race.measure([(e, race.aim.load(e.variant, price) or 1.0) for e in entrants.values()], 0.02)
        return {key: race.price(e) / price for key, e in entrants.items()}
