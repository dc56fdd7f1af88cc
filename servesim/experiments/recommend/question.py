"""Question of a recommendation: what to search, for which workload, and what to minimize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from servesim.errors import UserError, shown
from servesim.experiments.axes import product
from servesim.experiments.bounds import Work
from servesim.experiments.capacity import Terms, check_question
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.objects import Objects
from servesim.experiments.recommend.aims import (
    Aim,
    LeastLatency,
    MostForBudget,
    MostTraffic,
    PriceForRate,
    PricePerRequest,
)
from servesim.experiments.recommend.lengths import MOST, RELAXATIONS, Length, horizon_s, relaxation_s, work_of
from servesim.experiments.recommend.space import Point, Space, space_of
from servesim.experiments.replicates import replicates_of
from servesim.hardware import gpu_names
from servesim.metrics.slo import SLO_METRICS
from servesim.run.scenario import Scenario
from servesim.run.trace_source import DRAWN, open_scenario
from servesim.workload.trace import Trace

SCOUT, CLIMB = 0.5, 1.0
"""Shares of the full horizon that screening and improving runs of a drawn workload last."""
FEWEST = 2_000
"""Minimum number of requests of a full run of a drawn workload."""
MOST_GPUS = 4096
"""Maximum number of GPUs in a question."""
MOST_USD = 100_000.0
"""Maximum budget of a question, in dollars per hour."""
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
    return scout, climb if known.trace.startswith("synth:") else replace(climb, least=whole.least)


def _most(gpus: int | None, budget: float | None) -> MostTraffic | MostForBudget | None:
    """Return the aim of a question for GPUs or for a budget, or None for another question. Raise UserError for an
    invalid number."""
    if gpus is not None and budget is not None:
        raise UserError("recommend: specify either gpus or a budget")
    if gpus is not None and not 1 <= gpus <= MOST_GPUS:
        raise UserError(f"gpus is {gpus} but must be from 1 to {MOST_GPUS}")
    if budget is not None and not 0 < budget <= MOST_USD:
        raise UserError(f"budget is {budget:g} but must be above 0 and at most {MOST_USD:,.0f} dollars per hour")
    return MostTraffic(gpus) if gpus is not None else MostForBudget(budget) if budget is not None else None


def _latency(known: Scenario, name: str | None) -> str:
    """Return the metric of a latency that is minimized: the p99 of the one asked for, or of the first that has a limit.
    Raise UserError if there is none."""
    if name is not None and name not in SLO_METRICS:
        raise UserError(f"latency is {shown(name)} but must be one of {', '.join(SLO_METRICS)}")
    if name is None and not known.slo:
        raise UserError("recommend: specify a latency to minimize, because the SLO has only limits of classes")
    return f"{name or next(iter(known.slo))}_p99"


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
        budget: float | None,
        tune: bool,
        latency: str | None = None,
    ) -> Question:
        """Check a question. Raise UserError if it is invalid."""
        most = _most(gpus, budget)
        listed_ones = product({"gpu": gpu_names()[0], **settings}, lists)
        known = Scenario.of(listed_ones[0].settings)
        if latency is not None and (most is None or known.rate is None):
            raise UserError("recommend: a latency is minimized only with a rate, and a budget or gpus")
        trace = open_scenario(known.model_copy(update={"rate": None}), objects.get(known.trace))
        recorded = not known.trace.startswith(DRAWN)
        if recorded and known.rate is None and most is None and not tune:
            settings = {**settings, "rate": "1x"}
            known = known.model_copy(update={"rate": "1x"})
        check_question("recommend", known, listed_ones)
        space = space_of(settings, lists, trace.content is not None, tune, terms.by_formula)
        goals = goals_of(known, terms.attainment)
        aim: Aim = PricePerRequest() if most is None else most
        rate = 1.0
        if known.rate is not None:
            repeats = replicates_of(known.model_dump(), 1, objects)
            rate = known.rate if isinstance(known.rate, float) else float(known.rate[:-1]) * (repeats.mean_rate or 0.0)
            aim = PriceForRate(rate, terms.max_replicas)
            if most is not None:
                aim = LeastLatency(most, rate, _latency(known, latency))
        scout, climb = _lengths(known, trace, goals)
        return cls(space, terms, goals, aim, trace, recorded, scout, climb, rate)

    @property
    def requests(self) -> int | None:
        """Number of requests of a log, or None for a workload that is drawn, whose runs are as long as they need."""
        return len(self.trace) if self.recorded else None

    def sized(self, point: Point) -> Point | None:
        """Return a deployment with as many replicas as the question asks for, or None if not one fits in it."""
        replicas = self.aim.replicas(self.space.variant(point))
        if replicas is None:
            return point
        return None if not replicas else {**point, "replicas": replicas} if replicas > 1 else point
