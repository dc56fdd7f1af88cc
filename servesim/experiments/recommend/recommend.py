"""Recommendation: of everything that runs a model on known GPUs, what to run for a workload and its SLO.

The space (space.py) is searched from coarse to fine on common random numbers:

1. The cost model bounds the price of every structure: GPU, engine, formats, parallelism (bounds.py).
2. Short runs screen structures in the order of their bounds. A structure is measured only if it carries the load at
   which it would be near the best so far; one whose bound is higher does not run (race.py).
3. The few that are left are improved flag by flag, then by several random changes at once.
4. The best of each structure are compared by `capacity` at full length, with its verdicts and intervals.

The document is that of servesim.experiments.capacity with one more key, `recommendation` (answer.py).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servesim.errors import UserError
from servesim.experiments.axes import Variant, load_grid, product
from servesim.experiments.capacity import Terms, answer_with, opened
from servesim.experiments.capacity_study import REPORTED, Study
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.metrics import METRICS
from servesim.experiments.objects import Objects
from servesim.experiments.outcome import Measuring
from servesim.experiments.recommend.aims import Aim, Headroom, MostTraffic, PriceForRate, PricePerRequest, gpus_of
from servesim.experiments.recommend.answer import Story, finished
from servesim.experiments.recommend.bounds import Work, optimistic_rate, tpot_limit
from servesim.experiments.recommend.race import Entrant, Race, climb, screen
from servesim.experiments.recommend.space import Choices, Point, Space, changed, grid, measured, space_of
from servesim.experiments.replicates import replicates_of
from servesim.experiments.run_lengths import fewest_requests
from servesim.experiments.runner import Runner
from servesim.experiments.store import DEPLOY
from servesim.hardware import gpu_names
from servesim.parsing import listed
from servesim.plugins.trust import takes_trust
from servesim.run.result_files import write_text
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, open_scenario
from servesim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

HEADS = 4
"""Maximum number of structures that are improved flag by flag."""
CLIMBERS, FINALISTS = 2, 3
"""Maximum numbers of deployments that are improved by more than one flag, and that are compared at full length."""
GAIN = 0.01
"""Smallest gain for which a flag is changed."""
BATCH = 8
"""Number of structures that run at a time; a constant, so that results do not depend on the number of processes."""
COARSE = 0.1
"""Ratio at which a coarse search for a rate stops."""
PASSES, DRAWS = 2, 24
"""Maximum number of changes per deployment, and number of random changes tried afterwards."""
SCOUT, CLIMB = 1_000, 2_500
"""Lengths of screening and of improving runs, in requests."""
LOG = 5_000
"""Length up to which a recorded log is replayed whole while searching."""


@takes_trust
def recommend(
    scenario: str | Path | Mapping[str, Any] | None = None,
    *,
    gpus: int | None = None,
    tune: bool = False,
    search_seed: int = 0,
    forms: str | Sequence[str] | None = None,
    **asked: Any,
) -> pd.DataFrame:
    """Find the best deployment for a workload and an SLO.

    A setting with one value is fixed, one with several values is searched over these, and the others are searched over
    everything that runs. With a `rate`, which a recorded log has (`1x`), the cheapest deployment is searched; without
    one, the least price per request at the highest rate; with `gpus`, the highest rate of that number of GPUs. `tune`
    keeps hardware and engine, and searches flags alone. `forms` are names of files to write below `out`
    (servesim.launch). Other keywords are those of `servesim.capacity`. The document is in
    `.attrs["document"]`. Raises UserError if the question is invalid, or if nothing in the space runs.
    """
    terms, axes = Terms.of(asked)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    question = Question.of(settings, lists, terms, objects, gpus, tune)
    with opened(terms, objects, question.space.base) as runner:
        search = Search(question, runner, random.Random(search_seed))
        finalists, story = search.run()
        story.forms = ["command", *(listed("form", forms) if isinstance(forms, str) else forms or ())]
        frame = answer_with(runner, finalists, terms, lambda found: finished(found, story), near=story.near())
    found = frame.attrs["document"]["recommendation"]
    if found is not None and terms.out is not None:
        folder = Path(terms.out) / DEPLOY
        folder.mkdir(exist_ok=True)
        for name, text in found["run"]["files"].items():
            write_text(folder / name, text, "--out")
    return frame


@dataclass(frozen=True)
class Question:
    """What to search, and for which workload."""

    space: Space
    terms: Terms
    goals: list[Goal]
    aim: Aim
    trace: Trace
    recorded: bool
    lengths: tuple[int | None, int | None]
    """Lengths of the screening and of the improving runs; None for the whole trace."""
    gpus: int | None
    rate: float
    """Requests/s of the question, or 1."""

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        lists: Mapping[str, Any],
        terms: Terms,
        objects: Objects,
        gpus: int | None,
        tune: bool,
    ) -> Question:
        """Check a question. Raise UserError if it is invalid."""
        if gpus is not None and gpus < 1:
            raise UserError(f"gpus is {gpus} but must be at least 1")
        known = Scenario.of(product({"gpu": gpu_names()[0], **settings}, lists)[0].settings)
        if not (known.slo or known.slo_classes):
            raise UserError("recommend: specify an SLO, such as --slo ttft:500,tpot:50")
        trace = open_scenario(known.model_copy(update={"rate": None}), objects.get(known.trace))
        recorded = not known.trace.startswith(DRAWN)
        if recorded and known.rate is None and gpus is None and not tune:
            settings = {**settings, "rate": "1x"}
            known = known.model_copy(update={"rate": "1x"})
        space = space_of(settings, lists, trace.content is not None, tune, terms.by_formula)
        goals = goals_of(known, terms.attainment)
        aim: Aim = PricePerRequest()
        rate = 1.0
        if gpus is not None:
            aim = MostTraffic()
        elif known.rate is not None:
            repeats = replicates_of(known.model_dump(), 1, objects)
            rate = known.rate if isinstance(known.rate, float) else float(known.rate[:-1]) * (repeats.mean_rate or 0.0)
            aim = PriceForRate(rate, terms.max_replicas)
        whole = known.requests or (len(trace) if recorded or not known.trace.startswith("synth:") else None)
        longest = whole or fewest_requests(goals)
        most = (LOG, LOG) if recorded else (SCOUT, CLIMB)
        lengths = tuple(None if recorded and longest <= length else min(longest, length) for length in most)
        return cls(space, terms, goals, aim, trace, recorded, (lengths[0], lengths[1]), gpus, rate)

    def variant(self, point: Point, length: int | None) -> Variant:
        """Return a deployment with runs of some length."""
        return self.space.variant(point, {} if length is None else {"requests": length})

    def sized(self, point: Point) -> Point | None:
        """Return a deployment with as many replicas as the GPUs of the question hold, or None if it does not fit."""
        if self.gpus is None:
            return point
        replicas = self.gpus // gpus_of(self.variant(point, None))
        return None if not replicas else {**point, "replicas": replicas} if replicas > 1 else point


class Search:
    """Search of one question."""

    def __init__(self, question: Question, runner: Runner, draw: random.Random) -> None:
        self._q, self._runner, self._draw = question, runner, draw
        self._refused: dict[str, str] = {}
        self._work = Work.of(question.trace)
        self._limit = tpot_limit(question.goals)

    def run(self) -> tuple[list[Variant], Story]:
        """Search. Return the deployments to compare at full length, and the story of the search. Raise UserError if
        nothing in the space runs."""
        q = self._q
        entrants = [e for point in q.space.structures() if (e := self._checked(point)) is not None]
        if not entrants:
            why = next(iter(self._refused.values()), "no GPU is left")
            raise UserError(f"recommend: no deployment of {q.space.base.get('model')} runs: {why}")
        screening = coarse = self.race(q.lengths[0], q.aim)
        kept = screen(screening, entrants, BATCH)
        heads = kept[:HEADS]
        heads += [e for e in kept if self._published(e)][:1] if not any(map(self._published, heads)) else []
        aim = q.aim
        if isinstance(aim, PriceForRate):
            heads, aim = self._with_replicas(heads, screening), Headroom()
            coarse = self.race(q.lengths[0], aim)
            coarse.measure([(e, q.rate) for e in heads], COARSE)
        coarse.measure([(e, self._start(coarse, e)) for e in heads], GAIN)
        heads = self._few(climb(coarse, heads, self._with_features, GAIN, 1), coarse, FINALISTS)
        heads = self._few(climb(coarse, heads, self._with_flags, GAIN, 1), coarse, CLIMBERS)
        heads = climb(coarse, heads, self._with_flags, GAIN, PASSES)
        fine = self.race(q.lengths[1], aim)
        best = self._few(heads, coarse, FINALISTS)
        longer = [(replace(e, variant=q.variant(e.point, fine.length)), self._start(coarse, e)) for e in best]
        fine.measure(longer, GAIN)
        best = sorted([e for e, _ in longer], key=fine.rank)
        best = [*climb(fine, best[:1], self._shaken, GAIN, 1), *best[1:]]
        drop = ("replicas",) if isinstance(q.aim, PriceForRate) else ()
        points = [({k: v for k, v in e.point.items() if k not in drop}, e) for e in best or entrants[:1]]
        final = {(v := q.variant(point, None)).label: (v, e) for point, e in points}
        finalists = {label: e for label, (_, e) in final.items()}
        story = Story(q.space, q.aim, q.goals, screening, fine, entrants, kept, finalists, self._refused)
        if best:
            story.ablate(best[0], self._without(best[0]))
        return [v for v, _ in final.values()], story

    def _with_replicas(self, heads: Sequence[Entrant], race: Race) -> list[Entrant]:
        """Return deployments with the number of replicas that each needs."""
        found = []
        for e in heads:
            replicas = race.aim.load(e.variant, race.prices[e.variant.label] * 1.001)
            point = {**e.point, "replicas": int(replicas or 1)}
            found.append(Entrant(point, self._q.variant(point, race.length)))
        return found

    def _few(self, heads: Sequence[Entrant], race: Race, most: int) -> list[Entrant]:
        """Return the best deployments, and the best one with the published formats if it is not among them."""
        known = [e for e in heads if race.prices[e.variant.label] < math.inf]
        best = known[:most]
        return best + ([e for e in known if self._published(e)][:1] if not any(map(self._published, best)) else [])

    def _published(self, e: Entrant) -> bool:
        axes = self._q.space.axes
        return all(e.point.get(key) == grid(axes[key])[0] for key in ("dtype", "kv_dtype") if key in axes)

    def race(self, length: int | None, aim: Aim) -> Race:
        q = self._q
        settings = {**q.space.base, "gpu": grid(q.space.axes["gpu"])[0]}
        settings |= {} if length is None else {"requests": length}
        repeats = replicates_of(settings, None if q.recorded else 1, self._runner.objects, q.terms.window, 5)
        ends = repeats.margins(q.terms.warmup, q.terms.cooldown)
        metrics = [METRICS[name] for name in REPORTED]
        measuring = Measuring(metrics, q.goals, repeats, ends, q.terms.window_minutes, q.terms.window_requests)
        return Race(Study(self._runner, [], measuring), aim, length)

    def _checked(self, point: Point) -> Entrant | None:
        """Return a deployment that may race, or None, with the reason in `_refused`."""
        v = self._q.variant(point, self._q.lengths[0])
        setup = self._q.space.set_up(point)
        if isinstance(setup, str):
            self._refused[v.label] = setup
            return None
        if not self._q.terms.by_formula and not measured(setup):
            self._refused[v.label] = "most of its GPU time would come from formulas"
            return None
        sized = self._q.sized(point)
        if sized is None:
            self._refused[v.label] = f"more than {self._q.gpus} GPUs"
            return None
        rate = optimistic_rate(setup, self._work, self._limit) * int(sized.get("replicas", 1))
        return Entrant(sized, self._q.variant(sized, self._q.lengths[0]), self._q.aim.bound(v, rate))

    def _start(self, race: Race, e: Entrant) -> float:
        return race.aim.load(e.variant, race.prices[e.variant.label]) or 1.0

    def _with_features(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return the deployments that differ from one in a setting of a feature."""
        return self._changed(head, race, self._q.space.features(head.point))

    def _with_flags(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return the deployments that differ from one in one flag."""
        return self._changed(head, race, self._q.space.flags(head.point))

    def _changed(self, head: Entrant, race: Race, values: Mapping[str, Choices]) -> list[Entrant]:
        each = [(key, value) for key, choices in values.items() for value in self._q.space.grid(key, choices)]
        points = [changed(head.point, key, value) for key, value in each if value != head.point.get(key)]
        found = [Entrant(point, self._q.variant(point, race.length)) for point in points]
        return [e for e in found if self._comparable(e, head, race)]

    def _comparable(self, e: Entrant, head: Entrant, race: Race) -> bool:
        """Return whether a deployment can be set up, on as many GPUs as another one if the race is about these."""
        try:
            return not race.aim.same_gpus or gpus_of(e.variant) == gpus_of(head.variant)
        except UserError:
            return False

    def _shaken(self, head: Entrant, race: Race) -> list[Entrant]:
        """Return deployments that differ from one in one flag, or in several drawn at random."""
        values = {**self._q.space.features(head.point), **self._q.space.flags(head.point)}
        found = {e.variant.label: e for e in self._with_flags(head, race)}
        for _ in range(DRAWS):
            point = dict(head.point)
            for key in self._draw.sample(sorted(values), min(len(values), self._draw.choice((2, 3)))):
                point = changed(point, key, self._draw.choice(self._q.space.grid(key, values[key])))
            e = Entrant(point, self._q.variant(point, race.length))
            if self._comparable(e, head, race):
                found[e.variant.label] = e
        found.pop(head.variant.label, None)
        return [*found.values()]

    def _without(self, head: Entrant) -> dict[str, Variant]:
        """Return, by flag, a deployment without that flag."""
        keys = sorted(head.point.keys() - self._q.space.axes.keys() - {"replicas"})
        points = {key: {k: v for k, v in head.point.items() if k != key} for key in keys}
        return {key: self._q.variant(point, self._q.lengths[1]) for key, point in points.items()}
