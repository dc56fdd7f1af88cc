"""Bound from an idle server: every request served alone is at least as fast as it is under any load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.contracts import schedulers
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.experiments.axes import product
from servesim.experiments.goals import Goal
from servesim.experiments.objects import Objects
from servesim.experiments.replicates import WORKLOAD
from servesim.experiments.run_metrics import Run
from servesim.metrics.requests import MS
from servesim.run.scenario import Scenario, features_of
from servesim.run.sections import ClientSettings
from servesim.run.trace_source import open_scenario
from servesim.workload.trace import Ints, Trace

MOST = 400_000
"""Maximum number of requests served alone, so that the time of the last one fits in an integer."""
APART_NS = 10**13
"""Nanoseconds between consecutive requests, long enough for each one to finish before the next arrives."""
LONGEST = 64
"""Number of requests with the longest contexts that are sent to measure their time per output token. When served alone,
tokens take longer with more context, so these requests bound all others."""


def trace_of(settings: Mapping[str, Any], objects: Mapping[str, Trace]) -> Trace | None:
    """Return the trace of a scenario if serving its requests alone gives a bound: each request is sent at a fixed time,
    prompts share no content that a busier server might have in its cache, and the scheduler never waits for more
    requests. Return None if it gives no bound or the scenario is invalid."""
    try:
        scenario = Scenario.of(settings)
        name = scenario.scheduler["name"]
        own = ".py:" in name or not schedulers.resolve(name)[0].__module__.startswith("servesim.")
        if own or scenario.clients != ClientSettings() or scenario.stream:
            return None
        trace = open_scenario(scenario, objects.get(scenario.trace))
    except UserError:
        return None
    plain = trace.after is None and trace.content is None and trace.samples is None
    return trace if plain and len(trace) < MOST else None


def _apart(prompt_len: Ints, output_len: Ints) -> Trace:
    """Return a trace of requests with these lengths, each sent to an idle server."""
    return Trace.from_lengths("alone", np.arange(len(prompt_len)) * APART_NS, prompt_len, output_len)


@dataclass(frozen=True)
class Alone:
    """Requests to send one at a time in place of a trace."""

    of: Trace
    trace: Trace
    """Trace with each prompt length once, with one output token, followed by the longest requests; or with all requests
    unchanged."""
    row: Ints | None
    """Row in that trace for each request of `of`, or None if the trace has all requests."""

    @classmethod
    def reduced(cls, trace: Trace, goals: Sequence[Goal], settings: Mapping[str, Any]) -> Alone:
        """Return an equivalent set with fewer tokens if only TTFT and TPOT are limited and there are no drafts, which
        would make the results random. Otherwise return every request."""
        names = {name for goal in goals for limits in (goal.limits, *goal.classes.values()) for name in limits}
        if not names <= {"ttft", "tpot"} or Scenario.of(settings).speculation["name"] != "none":
            return cls.whole(trace)
        prompts, row = np.unique(trace.prompt_len, return_inverse=True)
        longest = np.argsort(-(trace.prompt_len + trace.output_len), kind="stable")[:LONGEST]
        outputs = np.concatenate([np.ones_like(prompts), trace.output_len[longest]])
        sent = np.concatenate([prompts, trace.prompt_len[longest]])
        return cls(trace, _apart(sent, outputs), row)

    @classmethod
    def whole(cls, trace: Trace) -> Alone:
        """Return every request unchanged."""
        return cls(trace, _apart(trace.prompt_len, trace.output_len), None)

    def settings(self, settings: Mapping[str, Any], objects: Objects) -> Settings:
        """Return the settings of the run that sends the requests."""
        served = {key: value for key, value in settings.items() if key not in WORKLOAD}
        kept = {"acceptance": settings["acceptance"]} if settings.get("acceptance") is not None else {}
        one = {**served, **kept, "replicas": 1, "trace": objects.add(self.trace)}
        scenario = Scenario.of(one)
        alone = {key: [value] for f in features_of(scenario) if f.is_on(scenario) for key, value in f.alone.items()}
        return product(one, alone)[0].settings

    def measured(self, run: Run, goals: Sequence[Goal]) -> Run | None:
        """Return the run as if it had all requests of the trace. Return None if the longest requests exceed a TPOT
        limit, so that all requests must be run."""
        labels = self.of.labels.get("class")
        if self.row is None:
            return Run(run.summary, run.columns, labels)
        limits = [
            limits["tpot"] for goal in goals for limits in (goal.limits, *goal.classes.values()) if "tpot" in limits
        ]
        longest = run.columns["tpot_ns"][len(run.columns["row"]) - min(LONGEST, len(self.of)) :] / MS
        if limits and np.nanmax(np.nan_to_num(longest)) > min(limits):
            return None
        columns = {name: column[self.row] for name, column in run.columns.items()}
        return Run(run.summary, columns | {"tpot_ns": np.zeros(len(self.of))}, labels)
