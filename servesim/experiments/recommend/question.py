"""Question of a recommendation: what to search, for which workload, and what to minimize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.experiments.capacity import Terms, check_question
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.objects import Objects
from servesim.experiments.recommend.aims import Aim, MostTraffic, PriceForRate, PricePerRequest, gpus_of
from servesim.experiments.recommend.bounds import Work
from servesim.experiments.recommend.lengths import MOST, RELAXATIONS, Length, horizon_s, relaxation_s, work_of
from servesim.experiments.recommend.space import Point, Space, space_of
from servesim.experiments.replicates import replicates_of
from servesim.hardware import gpu_names
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, open_scenario
from servesim.workload.trace import Trace

SCOUT, CLIMB = 0.5, 1.0
"""Shares of the full horizon that screening and improving runs of a drawn workload last."""
FEWEST = 2_000
"""Minimum number of requests of a full run of a drawn workload."""
MOST_GPUS = 4096
"""Maximum number of GPUs in a question."""
LOG = 5_000
"""Length up to which a recorded log is replayed whole while searching."""


def _lengths(known: Scenario, trace: Trace, goals: Sequence[Goal]) -> tuple[Length, Length]:
    """Return the lengths of screening runs and of improving runs. A workload that is drawn from distributions is as
    long as its queue needs. The rows of a log or a preset differ from hour to hour: its busiest stretch screens, and
    the whole decides."""
    work = () if known.trace.startswith("synth:") or known.shape else work_of(trace)
    whole = Length(None if len(trace) <= MOST else MOST, work=work, skip=known.skip)
    if not known.trace.startswith(DRAWN):
        return whole if len(trace) <= LOG else replace(whole, least=LOG), whole
    seconds = horizon_s(goals, Work.of(trace).output)
    relaxation = RELAXATIONS * relaxation_s(goals, trace.prompt_len)
    fewest = max(FEWEST, known.requests or 0)
    scout, climb = (
        Length(int(fewest * share), seconds * share, relaxation * share, work, known.skip) for share in (SCOUT, CLIMB)
    )
    return scout, climb if known.trace.startswith("synth:") else whole


@dataclass(frozen=True)
class Question:
    """Space, aim and workload of a search."""

    space: Space
    terms: Terms
    goals: list[Goal]
    aim: Aim
    trace: Trace
    recorded: bool
    scout: Length
    """Length of the screening runs."""
    climb: Length
    """Length of the improving runs."""
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
        if gpus is not None and not 1 <= gpus <= MOST_GPUS:
            raise UserError(f"gpus is {gpus} but must be from 1 to {MOST_GPUS}")
        listed_ones = product({"gpu": gpu_names()[0], **settings}, lists)
        known = Scenario.of(listed_ones[0].settings)
        check_question("recommend", known, listed_ones)
        if gpus is not None and known.rate is not None:
            raise UserError("recommend: specify either gpus, to find the highest rate, or a rate")
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
        scout, climb = _lengths(known, trace, goals)
        return cls(space, terms, goals, aim, trace, recorded, scout, climb, gpus, rate)

    def sized(self, point: Point) -> Point | None:
        """Return a deployment with as many replicas as the GPUs of the question hold, or None if it does not fit."""
        if self.gpus is None:
            return point
        replicas = self.gpus // gpus_of(self.space.variant(point))
        return None if not replicas else {**point, "replicas": replicas} if replicas > 1 else point
