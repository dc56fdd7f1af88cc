"""A server whose times are longer or shorter than simulated by the model's error: what is run in its place, what the
figures of that run are of it, and how far the error goes.

A server all of whose times are longer by a factor f, under arrivals of rate r, is the simulated server under arrivals
of rate f r with every time multiplied by f: exactly, queue and all. So a rerun at another rate, with limits shorter by
f, is a draw of the model's error, with the same requests (common random numbers).

How far it goes measured servers say of one server, and pairs of them of the ratio of two, never the difference of two
intervals. What follows of p99, goodput, rates and prices is propagated, not validated: one factor stretches prompts
and decodes alike, and all latencies are taken to err together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servesim.contracts.section import Settings
from servesim.intervals.case import METRICS, Case
from servesim.intervals.fitted import Fitted
from servesim.intervals.pairs import Spread, spread
from servesim.run.error_bars import ENDS, LATENCY_KEYS
from servesim.run.pools import fleet_varies
from servesim.run.scenario import Scenario
from servesim.run.sections import ClientSettings, factor_of

SAYS = "propagated, not validated"
PAIRED = {key: metric for metric, key in LATENCY_KEYS.items()}
"""Names that pairs of servers have for latencies, by key of a summary."""
_SCALED_CLIENTS = ("max_concurrency", "burstiness")
"""Client settings that are no times."""


def latency_of(name: str) -> str:
    """Return the key of the latency that a metric is a statistic of; of another metric no such key."""
    return name.rpartition("_")[0]


@dataclass(frozen=True)
class Stretch:
    """How much longer the times of a server are than simulated."""

    by: Mapping[str, float]
    """Factors of latencies, by their keys in a summary."""

    @classmethod
    def even(cls, factor: float) -> Stretch:
        """Return the stretch of all latencies alike."""
        return cls(dict.fromkeys(PAIRED, factor))

    @property
    def times(self) -> float:
        """The factor of durations, which is that of E2E."""
        return self.by["e2el"]

    def limits(self, limits: Mapping[str, float]) -> dict[str, float]:
        """Return the limits in ms that the run in its place has for these."""
        return {name: limit / self.by[name] for name, limit in limits.items()}

    def classes(self, classes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Return the same of classes that have their own."""
        return {name: self.limits(limits) for name, limits in classes.items()}

    def settings(self, scenario: Scenario, rate: float | None = None) -> Settings:
        """Return the settings of the run in its place. `rate`: arrivals per second, by default as the scenario says."""
        given = scenario.rate if rate is None else rate
        fast = given * self.times if isinstance(given, float) else f"{(factor_of(given) or 1) * self.times!r}x"
        found: Settings = {"rate": fast}
        if scenario.slo:
            found["slo"] = self.limits(scenario.slo)
        if scenario.slo_classes:
            found["slo_classes"] = self.classes(scenario.slo_classes)
        return found

    def value(self, name: str, becomes: str, value: float) -> float:
        """Return a figure of the run in its place as the stretched server has it. `name`: with a statistic where it
        has one, `ttft_p99`; `becomes`: as a Figure says."""
        if becomes == "longer":
            return value * self.by.get(latency_of(name), self.times)
        return value / self.times if becomes == "rarer" else value


def stretches(fitted: Fitted, side: Case | str, scenario: Scenario, waits: bool) -> tuple[Stretch, Stretch] | str:
    """Return a server with its times as short and as long as at the ends of its interval, or in words why those are not
    known. `side`: as of servesim.run.error_bars.side_of; `waits`: requests of the trace wait for others.

    An end is one share of servers for all latencies, each of which takes its own factor there."""
    if isinstance(side, str):
        return side
    kind, why = fitted.kind_of(side)
    if kind is None:
        return why
    if why := unscaled(scenario, waits):
        return why
    factors = {LATENCY_KEYS[metric]: fitted.factors(side, kind, metric) for metric in METRICS}
    low, high = (Stretch({key: one.at(share) for key, one in factors.items()}) for share in ENDS)
    return low, high


def ratio_spread(fitted: Fitted, a: Case | str, b: Case | str, metric: str) -> Spread | str:
    """Return the spread of the ratio of `metric` of two sides, or in words why none is known."""
    if isinstance(a, str):
        return a
    return b if isinstance(b, str) else spread(fitted, a, b, metric)


def unscaled(scenario: Scenario, waits: bool) -> str:
    """Return in words which times of a scenario are not the server's, so that they would not stretch; empty for none.
    `waits`: requests of the trace wait for others."""
    usual = ClientSettings()
    for name in ClientSettings.model_fields:
        if name not in _SCALED_CLIENTS and getattr(scenario.clients, name) != getattr(usual, name):
            return f"clients.{name} does not scale with the server's times"
    if waits:
        return "pauses in conversations do not scale with the server's times"
    if fleet_varies(scenario):
        return "autoscaler intervals and replica start times do not scale with the server's times"
    return "streamed runs cannot be rerun" if scenario.stream else ""
