"""A server whose times are longer or shorter than simulated by the model's error: the run that replaces it, the
conversion of that run's figures, and the size of the error.

A server all of whose times are longer by a factor f, under arrivals of rate r, is equivalent to the simulated server
under arrivals of rate f r with every time multiplied by f: exactly, including the queue. So a rerun at another rate,
with limits shorter by f, is a draw of the model's error, with the same requests (common random numbers).

The size of the error comes from measured servers for one server, and from pairs of them for the ratio of two, never
from the difference of two intervals. The resulting p99, goodput, rates and prices are propagated, not validated: one
factor stretches prefill and decode equally, and the errors of all latencies are assumed to be fully correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servesim.contracts.section import Settings
from servesim.intervals.case import METRICS, Case
from servesim.intervals.fitted import Fitted
from servesim.intervals.pairs import Spread, spread
from servesim.run.error_bars import ENDS, LATENCY_KEYS
from servesim.run.scenario import Scenario, fleet_varies
from servesim.run.sections import ClientSettings, factor_of

SAYS = "propagated, not validated"
PAIRED = {key: metric for metric, key in LATENCY_KEYS.items()}
"""Names of latencies in measured pairs, by key of a summary."""
_SCALED_CLIENTS = ("max_concurrency", "burstiness")
"""Client settings that are not times."""


def latency_of(name: str) -> str:
    """Return the key of the latency that a metric is a statistic of; for other metrics, return a string that is not
    such a key."""
    return name.rpartition("_")[0]


@dataclass(frozen=True)
class Stretch:
    """Factors by which the times of a server are longer than simulated."""

    by: Mapping[str, float]
    """Factors of latencies, by their keys in a summary."""

    @classmethod
    def even(cls, factor: float) -> Stretch:
        """Return a stretch with the same factor for all latencies."""
        return cls(dict.fromkeys(PAIRED, factor))

    @property
    def times(self) -> float:
        """Factor of durations, which is the factor of E2E."""
        return self.by["e2el"]

    @property
    def words(self) -> str:
        """Stretch in words, such as `all times 11 % longer`."""
        return f"all times {100 * abs(self.times - 1):.0f} % {'longer' if self.times > 1 else 'shorter'}"

    def limits(self, limits: Mapping[str, float]) -> dict[str, float]:
        """Return these limits in ms, converted for the replacement run."""
        return {name: limit / self.by[name] for name, limit in limits.items()}

    def classes(self, classes: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Return the limits of classes that have their own limits, converted for the replacement run."""
        return {name: self.limits(limits) for name, limits in classes.items()}

    def settings(self, scenario: Scenario, rate: float | None = None) -> Settings:
        """Return the settings of the replacement run. `rate`: arrivals per second, by default the scenario's."""
        given = scenario.rate if rate is None else rate
        fast = given * self.times if isinstance(given, float) else f"{(factor_of(given) or 1) * self.times!r}x"
        found: Settings = {"rate": fast}
        if scenario.slo:
            found["slo"] = self.limits(scenario.slo)
        if scenario.slo_classes:
            found["slo_classes"] = self.classes(scenario.slo_classes)
        return found

    def value(self, name: str, becomes: str, value: float) -> float:
        """Convert a figure of the replacement run to the stretched server. `name`: with its statistic, if any, as in
        `ttft_p99`; `becomes`: as in a Figure."""
        if becomes == "longer":
            return value * self.by.get(latency_of(name), self.times)
        return value / self.times if becomes == "rarer" else value


def stretches(fitted: Fitted, side: Case | str, scenario: Scenario, waits: bool) -> tuple[Stretch, Stretch] | str:
    """Return the stretches at the short and long end of a server's interval, or the reason why they are unknown.
    `side`: as returned by servesim.run.error_bars.side_of; `waits`: whether requests of the trace wait for others.

    Each end stands for the same share of servers for all latencies, but each latency has its own factor there.
    """
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
    """Return the spread of the ratio of `metric` of two sides, or the reason why none is known."""
    if isinstance(a, str):
        return a
    return b if isinstance(b, str) else spread(fitted, a, b, metric)


def unscaled(scenario: Scenario, waits: bool) -> str:
    """Return the reason why some times of a scenario would not stretch with the server, or an empty string if there is
    none. `waits`: whether requests of the trace wait for others."""
    usual = ClientSettings()
    for name in ClientSettings.model_fields:
        if name not in _SCALED_CLIENTS and getattr(scenario.clients, name) != getattr(usual, name):
            return f"clients.{name} does not scale with the server's times"
    if waits:
        return "pauses in conversations do not scale with the server's times"
    if fleet_varies(scenario):
        return "autoscaler intervals and replica start times do not scale with the server's times"
    return "streamed runs cannot be rerun" if scenario.stream else ""
