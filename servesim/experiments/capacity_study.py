"""Runs for a capacity question, requested round by round and only if they can change the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from servesim.contracts.section import Settings
from servesim.contracts.warn import Warn
from servesim.errors import PolicyError, UserError
from servesim.experiments.axes import Variant
from servesim.experiments.bounds import Work, first_replicas, optimistic_rate, tpot_limit
from servesim.experiments.capacity_scaled import at_load, scaled_labels
from servesim.experiments.goals import Goal
from servesim.experiments.idle import Alone, trace_of
from servesim.experiments.limit_search import START, LimitSearch, RateSearch
from servesim.experiments.outcome import Judged, Measuring, Outcome, growing, judge
from servesim.experiments.ranking import PARETO
from servesim.experiments.replicates import WORKLOAD, Replicates
from servesim.experiments.run_metrics import NONE_ARRIVES, Run
from servesim.experiments.run_warnings import run_warnings
from servesim.experiments.runner import Runner
from servesim.experiments.smallest_tp import set_up_alone
from servesim.experiments.store import Cell
from servesim.run.replica_search import ReplicaSearch
from servesim.run.scenario import Scenario
from servesim.run.trace_source import open_scenario
from servesim.workload.trace import Trace

REPORTED = (*PARETO, "ttft_p99", "tpot_p99", "usd_per_million_output_tokens", "slo_attainment")
ENDS = 4
"""Factor by which the bisection of an interval's ends is coarser than that of the rate itself."""
BELOW, STEP = 1.25, 1.75
"""Factor below a rate found by shorter runs at which the search starts, and its first step, which leads beyond it."""
IDLE_HALF = 0.5
"""Fraction of time that GPUs compute, below which load is no longer the reason that requests wait. If doubling the
replicas then changes nothing, adding more will not either."""

Load = tuple[str, float]
"""Label of a deployment, and its rate or its number of replicas."""


def load_text(key: str, load: float) -> str:
    """Return a load in words: "1 replica", "3.5 requests/s"."""
    return f"{load:g} replica{'s' * (load != 1)}" if key == "replicas" else f"{load:g} requests/s"


class Study:
    """Study that requests runs round by round, for all deployments and replicates together."""

    def __init__(
        self,
        runner: Runner,
        variants: Sequence[Variant],
        measuring: Measuring,
        near: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`near` holds the rates found by shorter runs, by label."""
        self._runner, self.variants, self.measuring = runner, variants, measuring
        self._repeats, self._near = measuring.repeats, near
        self.points: list[dict[str, Any]] = []
        self.outcomes: dict[Load, list[Outcome]] = {}
        self.judged: dict[Load, Judged] = {}
        self.idle: dict[str, Outcome] = {}
        """Results of serving every request alone, by deployment label."""
        self._alone_runs: dict[str, list[tuple[Alone, Run]]] = {}
        self.errors: dict[str, str] = {}
        self._last: dict[str, Cell] = {}
        self._searches: dict[str, LimitSearch] = {}
        self.scaled = scaled_labels(variants)
        """Labels of deployments with an autoscaler."""

    def highest_rates(self, tolerance: float) -> dict[str, tuple[RateSearch, RateSearch, RateSearch]]:
        """Run three searches per deployment: one for the rate at which the margin over the goals is 0, and two for the
        ends of the rate's interval. Deployments that miss a goal even on an idle server have no searches."""
        found = {}
        for v in self._open_after_idle():
            start, step = self._repeats.mean_rate or START, 2.0
            if v.label in self._near:
                start, step = self._near[v.label] / BELOW, STEP
            mean, lower, upper = (RateSearch(times * tolerance, start, step) for times in (1, ENDS, ENDS))
            found[v.label] = mean, lower, upper
        self._search("rate", found)
        return found

    def fewest_replicas(self, max_replicas: int) -> dict[str, int | None]:
        """Run one search per deployment for the smallest sufficient number of replicas. The result is None for a
        deployment that never carries the rate."""
        firsts = {v.label: self._first(v, max_replicas) for v in self._open_after_idle()}
        searches = {label: ReplicaSearch(max_replicas, first, step=first) for label, first in firsts.items()}
        self._search("replicas", {label: (search,) for label, search in searches.items()})
        self._run_least([label for label, first in firsts.items() if first > 1])
        return {v.label: searches[v.label].fewest if v.label in searches else None for v in self.variants}

    def _run_least(self, labels: Sequence[str]) -> None:
        """Run one replica of those deployments whose queue grows at every number tried, because the smallest such
        number is reported. Their last runs stay those of the search."""
        stable = {label for (label, _), judged in self.judged.items() if judged.margin > -1}
        left = set(labels) - stable - self.errors.keys()
        last = {**self._last}
        self.run_at("replicas", [(v, 1) for v in self.variants if v.label in left])
        self._last = last

    def _first(self, v: Variant, most: int) -> int:
        """Return the number of replicas to try first: by the cost model's bound, fewer do not carry the rate. It is 1
        where the bound does not hold: if requests cannot be served alone (servesim.experiments.idle), or if replicas
        come and go."""
        if v.label not in self._alone_runs or v.label in self.scaled:
            return 1
        try:
            one = set_up_alone({**v.settings, **at_load(v.settings, "replicas", 1)})
        except (UserError, PolicyError):
            return 1  # its runs report the error
        work = Work.of(self._alone_runs[v.label][0][0].of)
        each = optimistic_rate(one, work, tpot_limit(self.measuring.goals))
        return first_replicas(self.rate_of(v, v.settings["rate"]), each, most)

    def _search(self, key: str, searches: Mapping[str, Sequence[LimitSearch]]) -> None:
        """Run loads round by round until each deployment's searches are done: for the load at which the margin over the
        goals is 0, and for the ends of its interval, if these are searched too."""
        self._searches = {label: each[0] for label, each in searches.items()}
        open_ones = [v for v in self.variants if v.label in searches]
        while True:
            wanted = []
            for v in open_ones:
                loads = [s.next() for s in searches[v.label]] if v.label not in self.errors else []
                wanted += [(v, load) for load in loads if load is not None][:1]
            if not wanted:
                return
            self.run_at(key, wanted)
            for v, load in wanted:
                if (at := self.judged.get((v.label, load))) is not None:
                    margins = (at.margin, at.margin_low, at.margin_high)
                    for search, margin in zip(searches[v.label], margins, strict=False):
                        search.tell(load, margin >= 0)
                        if isinstance(search, ReplicaSearch) and self._in_vain(v.label, load):
                            search.give_up()

    def _in_vain(self, label: str, n: float) -> bool:
        """Return whether further doubling is futile: the last one improved no share, and servers were idle most of the
        time or the replicas belong to an autoscaler. Not where a queue grows, which more replicas end at some number
        before any share of a run improves."""
        if n % 2 or (label, n // 2) not in self.judged or self.judged[label, n].carried:
            return False
        if growing(self.outcomes[label, n]):
            return False
        before, after = self.judged[label, n // 2], self.judged[label, n]
        steps = [1 / o.requests for o in self.outcomes[label, n]]
        gains = [b - a for a, b in zip(before.shares, after.shares, strict=True)]
        busy = max(o.busy for o in self.outcomes[label, n])
        return max(gains) <= max(steps) and (busy < IDLE_HALF or label in self.scaled)

    def _open_after_idle(self) -> list[Variant]:
        """Run every request alone on a server if that bounds the results under any load. Return the deployments that
        may still reach their goals."""
        asked = self._alone()
        while asked:  # a second time if the first, partial set is inconclusive
            settings = [
                alone.settings(self._repeats.settings(v.settings, j), self._runner.objects) for v, j, alone in asked
            ]
            cells = [self._runner.cell(each) for each in settings]
            self._compute(cells, [f"{v.label or 'the deployment'}, idle server" for v, _, _ in asked], len(asked))
            again = []
            for (v, j, alone), cell in zip(asked, cells, strict=True):
                if cell.address in self._runner.errors:
                    self.errors.setdefault(v.label, self._runner.errors[cell.address])
                elif alone.measured(run := self._runner.load(cell), self.measuring.goals) is None:
                    again.append((v, j, Alone.whole(alone.of)))
                else:
                    self._alone_runs.setdefault(v.label, []).append((alone, run))
            asked = again
        for v in self.variants:
            if outcomes := self._served_alone(v, self.measuring):
                worst = min(outcomes, key=lambda outcome: min(outcome.shares))
                means = np.mean([outcome.shares for outcome in outcomes], axis=0)
                self.idle[v.label] = worst if self._repeats.recorded else replace(worst, shares=tuple(means.tolist()))
        goals = self.measuring.goals
        return [v for v in self.variants if v.label not in self.errors and self.may_reach(v, goals)]

    def _alone(self) -> list[tuple[Variant, int, Alone]]:
        """Return the runs of requests served alone, for deployments and replicates that have such a bound."""
        traces: dict[str, Trace | None] = {}
        found = []
        for v in self.variants:
            for j in range(self._runs):
                settings = self._repeats.settings(v.settings, j)
                workload = repr([settings.get(key) for key in (*WORKLOAD, "scheduler", "stream", "preset")])
                if workload not in traces:
                    traces[workload] = trace_of(settings, self._runner.objects)
                if (trace := traces[workload]) is not None:
                    found.append((v, j, Alone.reduced(trace, self.measuring.goals, settings)))
        return found

    def _served_alone(self, v: Variant, measuring: Measuring) -> list[Outcome]:
        """Return the outcomes of requests served alone, or an empty list if they are not known for these goals."""
        found, paced = list[Outcome](), v.settings.get("rate") is not None
        for alone, raw in self._alone_runs.get(v.label, ()):
            if (run := alone.measured(raw, measuring.goals)) is None:
                return []
            found.append(measuring.alone(run, alone.of.arrival_ns, paced))
        return found

    def may_reach(self, v: Variant, goals: Sequence[Goal]) -> bool:
        """Return whether requests served alone reach `goals`, which may differ from the question's, on average over the
        replicates, or True if that is not known. If they do not, the goals are not reached at any load: their share
        cannot be exceeded, overall or in the worst window."""
        outcomes = self._served_alone(v, replace(self.measuring, goals=goals))
        shares = np.mean([outcome.least for outcome in outcomes], axis=0) if outcomes else np.ones(len(goals))
        return not (shares < [goal.share for goal in goals]).any()

    @property
    def _runs(self) -> int:
        """Number of runs of a deployment per load: one for a recorded trace, whose replicates are parts of it."""
        return len(self._repeats) if self._repeats.kind == "seeds" else 1

    def run_at(self, key: str, wanted: Sequence[tuple[Variant, float]]) -> None:
        """Run and judge deployments, each at a load. Record failures."""
        asked = [(v, load, j) for v, load in wanted for j in range(self._runs)]
        cells = [
            self._runner.cell({**self._repeats.settings(v.settings, j), **at_load(v.settings, key, load)})
            for v, load, j in asked
        ]
        names = [f"{v.label or 'the deployment'}, {load_text(key, load)}" for v, load, _ in asked]
        left = sum(search.left for label, search in self._searches.items() if label not in self.errors)
        self._compute(cells, names, max(left - len(wanted), 0))
        for (v, load, j), cell in zip(asked, cells, strict=True):
            if cell.address in self._runner.errors:
                self.errors.setdefault(v.label, self._runner.errors[cell.address])
                continue
            run = self._runner.load(cell)
            outcome = self.measuring.outcome(run)
            if np.isnan(outcome.shares).any():
                self.errors.setdefault(v.label, NONE_ARRIVES)
                continue
            self.outcomes.setdefault((v.label, load), []).append(outcome)
            self.points.append(self._point(v, j, cell, run.summary["scenario"], outcome))
            self._last[v.label] = cell
        for v, load in wanted:
            if v.label not in self.errors:
                self.judged[v.label, load] = judge(self.outcomes[v.label, load], self.measuring.goals)

    def warnings(self) -> list[Warn]:
        """Return the warnings of the deployments' last runs, which are near the loads of the answer."""
        return run_warnings(self._runner, self._last)

    def further(
        self, asked: Sequence[tuple[Variant, Settings, str]], repeats: Replicates | None = None
    ) -> list[list[Run] | None]:
        """Run deployments with other settings, described by the third item, on the study's replicates or others of
        their kind. Return the runs of all replicates, or None if any failed. These runs are not added to the points."""
        own, on = range(self._runs), repeats or self._repeats
        cells = [[self._runner.cell({**on.settings(v.settings, j), **s}) for j in own] for v, s, _ in asked]
        names = [f"{v.label or 'the deployment'}, {words}" for v, _, words in asked for _ in own]
        self._compute([cell for row in cells for cell in row], names, 0)
        failed = self._runner.errors
        return [None if any(c.address in failed for c in row) else [self._runner.load(c) for c in row] for row in cells]

    def _compute(self, cells: Sequence[Cell], names: Sequence[str], left: int) -> None:
        by_address = {cell.address: name for cell, name in zip(cells, names, strict=True)}
        self._runner.run(cells, by_address, left * self._runs)

    def _point(self, v: Variant, j: int, cell: Cell, scenario: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
        goals = self.measuring.goals
        at = int(np.argmin([share - goal.share for share, goal in zip(outcome.shares, goals, strict=True)]))
        window = outcome.worst[at]
        return {
            "label": v.label,
            "replicate": j,
            "rate": self.rate_of(v, cell.settings.get("rate")),
            "replicas": scenario["replicas"],
            "address": cell.address,
            "unstable": outcome.unstable,
            "attainment": outcome.shares[at],
            "worst_window": window.share if window is not None else None,
            "values": outcome.values,
        }

    def rate_of(self, v: Variant, rate: Any) -> float:
        """Return a rate in requests/s, even if it is given as a factor such as 3x."""
        known = Scenario.of({**v.settings, "rate": rate}).rate
        return known if isinstance(known, float) else float(str(known)[:-1]) * (self._repeats.mean_rate or np.nan)

    def trace(self, v: Variant) -> Trace:
        """Return the trace of a deployment's first replicate."""
        scenario = Scenario.of(self._repeats.settings(v.settings, 0))
        return open_scenario(scenario, self._runner.objects.get(scenario.trace))

    def columns(self) -> dict[str, list[Any]]:
        """Return the points as columns."""
        names = [name for name in self.points[0] if name != "values"] if self.points else []
        table = {name: [p[name] for p in self.points] for name in names}
        return table | {name: [p["values"][name] for p in self.points] for name in REPORTED}
