"""The bound of an idle server: every request alone is served at least as fast as under any load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts import schedulers
from servesim.errors import UserError
from servesim.run.scenario import ClientSettings, Scenario
from servesim.run.trace_source import open_scenario
from servesim.workload.trace import Trace

IDLE: dict[str, Any] = {"rate": "inf", "replicas": 1, "clients": {"max_concurrency": 1}}
"""Changes to a scenario: one request after the other."""


def trace_of(settings: Mapping[str, Any], objects: Mapping[str, Trace]) -> Trace | None:
    """Return the trace of a scenario at its own times, if requests alone are a bound: clients send each at its time,
    prompts share no content that a busier server might have in its cache, and the scheduler is one that never waits for
    company. None: they are not, or it is no scenario."""
    try:
        scenario = Scenario.of(settings)
        name = scenario.scheduler["name"]
        own = ".py:" in name or not schedulers.resolve(name)[0].__module__.startswith("servesim.")
        if own or scenario.clients != ClientSettings() or scenario.stream:
            return None
        trace = open_scenario(scenario.model_copy(update={"rate": None}), objects.get(scenario.trace))
    except UserError:
        return None
    return trace if trace.after is None and trace.content is None and trace.samples is None else None
