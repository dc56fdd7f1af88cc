"""Error bars of figures without measured counterparts (p99, goodput, price), from reruns with stretched times.

Each rerun simulates one draw of the model's error (servesim.run.stretched). A draw is a single share u for all metrics:
f is the factor of mean E2E such that a share u of servers lies below it, and TTFT and TPOT have their own factors at
the same u. Every figure is monotonic in u, so its 80 % interval takes two reruns, at u = .1 and .9, rather than twenty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servesim.intervals.fitted import Fitted, shipped
from servesim.metrics.engine_figures import PRICE
from servesim.metrics.request_figures import GOODPUT, LATENCY, THROUGHPUT
from servesim.run.error_bars import side_of
from servesim.run.scenario import Scenario
from servesim.run.stretched import SAYS, Stretch, stretches
from servesim.workload.trace_stream import TraceFacts

NAMES = ("ttft", "tpot", "e2el", "slo_attainment", "request_goodput", "request_throughput",
         "usd_per_million_output_tokens")  # fmt: skip
FIGURES = [
    (group, figure)
    for name in NAMES
    for group in (LATENCY, GOODPUT, THROUGHPUT, PRICE)
    for figure in group.figures
    if figure.name == name
]
"""Figures that have bars, with their groups. For distributions, the p99 is used."""
NOT_ASKED = "add --propagate for p99 and price"
Again = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Function that runs the scenario with other settings and returns its summary."""


def mean_rate(scenario: Scenario, facts: TraceFacts) -> float:
    """Return the arrivals per second, as defined by `rate`, or inf if all requests arrive at the start."""
    if isinstance(scenario.rate, float):
        return scenario.rate
    span = facts.last_ns - facts.first_ns
    return (len(facts) - 1) / span * 1e9 if span else float("inf")


def propagated(
    summary: Mapping[str, Any],
    scenario: Scenario,
    facts: TraceFacts,
    waits: bool,
    again: Again,
    fitted: Fitted | None = None,
) -> dict[str, Any]:
    """Return intervals of percentiles, goodput and price of a finished run.

    `says` states that they are not validated, or the reason there are none; `runs` is the number of extra runs. Each
    figure has `value` (simulated), `low` and `high`; null means that the queue grows without bound at that end.
    """
    fitted = shipped() if fitted is None else fitted
    ends = stretches(fitted, side_of(summary), scenario, waits)
    if isinstance(ends, str):
        return {"says": f"none: {ends}", "runs": 0}
    rate = mean_rate(scenario, facts)
    drawn = [_figures(again(end.settings(scenario, rate)), end) for end in ends]
    own = _figures(summary, Stretch.even(1.0))
    return {
        "says": SAYS,
        "runs": len(drawn),
        **{name: _interval(own[name], [one.get(name) for one in drawn]) for name in own},
    }


def _figures(summary: Mapping[str, Any], end: Stretch) -> dict[str, float]:
    """Return the figures of a run as they would be with stretched times, or an empty dict for an unstable run."""
    if summary["stability"]["unstable"]:
        return {}
    found = {}
    for group, figure in FIGURES:
        value: Any = (group.within(summary) or {}).get(figure.name)
        if value is not None:
            name = f"{figure.name}_p99" if figure.distributed else figure.name
            found[name] = end.value(name, figure.becomes, value["p99"] if figure.distributed else value)
    return found


def _interval(value: float, ends: list[float | None]) -> dict[str, float | None]:
    """Return low and high in order. If one end is unknown (unstable), the interval is open on that side."""
    near, far = ends
    if near is None or far is None:
        return {"value": value, "low": near, "high": far}
    return {"value": value, "low": min(near, far), "high": max(near, far)}
