"""Figures that no truth of their kind is known of (p99, goodput, price): error bars by running again with other times.

By the rule of servesim.run.error_bars a rerun at another rate is a draw of the model's error. A draw is one share u for
all metrics: f is the factor of mean E2E that a share u of servers lies below; TTFT and TPOT then take their own at the
same u. Every figure changes one way with u, so its interval of 80 % takes two reruns, at u = .1 and .9, not twenty.

What follows is propagated, not validated: one factor stretches prompts and decodes alike, and all latencies are taken
to err together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from servesim.intervals.case import METRICS
from servesim.intervals.fitted import Fitted, shipped
from servesim.run.error_bars import ENDS, LATENCY_KEYS, SAYS, case_of, unscaled
from servesim.run.scenario import Scenario
from servesim.workload.trace_stream import TraceFacts

NOT_ASKED = "none of p99, goodput, throughput and price: --propagate gives them, by two more runs"
Again = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Runs the scenario with other settings and returns its summary."""


def mean_rate(scenario: Scenario, facts: TraceFacts) -> float:
    """Return the arrivals per second, as `rate` counts them; inf where all are there from the start."""
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
    """Return intervals of percentiles, goodput and price of a finished run whose `summary` has `intervals`.

    `says`: that they are not validated, or in words why there are none; `runs`: how many more were run; by figure
    `value` (simulated), `low` and `high`; null: at that end the queue grows without end."""
    fitted = shipped() if fitted is None else fitted
    case, bars = case_of(summary), summary["intervals"]
    words = bars["says"] if case is None or bars["kind"] is None else unscaled(scenario, waits)
    if words or case is None:
        return {"says": f"none: {words}", "runs": 0}
    kind, _ = fitted.kind_of(case)
    assert kind is not None  # else there were no bars
    factors = {metric: fitted.factors(case, kind, metric) for metric in METRICS}
    rate = mean_rate(scenario, facts)
    drawn = []
    for share in ENDS:
        by = {LATENCY_KEYS[metric]: factors[metric].at(share) for metric in METRICS}
        limits = {name: limit / by[name] for name, limit in scenario.slo.items()}
        classes = {
            c: {name: limit / by[name] for name, limit in slo.items()} for c, slo in scenario.slo_classes.items()
        }
        changes = {"rate": rate * by["e2el"], "slo": limits, "slo_classes": classes}
        drawn.append(_figures(again(changes), by))
    own = _figures(summary, dict.fromkeys(LATENCY_KEYS.values(), 1.0))
    return {
        "says": SAYS,
        "runs": len(drawn),
        **{name: _interval(own[name], [one.get(name) for one in drawn]) for name in own},
    }


def _figures(summary: Mapping[str, Any], by: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of a run with its times stretched: latencies by their own factors, durations by that of E2E;
    nothing of an unstable run."""
    if summary["stability"]["unstable"]:
        return {}
    found = {f"{name}_p99": summary["latency_ms"][name]["p99"] * by[name] for name in by if summary["latency_ms"][name]}
    stretched = by["e2el"]
    if summary["goodput"]:
        found["slo_attainment"] = summary["goodput"]["slo_attainment"]
        found["request_goodput"] = summary["goodput"]["request_goodput"] / stretched
    found["request_throughput"] = summary["throughput"]["request_throughput"] / stretched
    found["usd_per_million_output_tokens"] = summary["price"]["usd_per_million_output_tokens"] * stretched
    return found


def _interval(value: float, ends: list[float | None]) -> dict[str, float | None]:
    """Return low and high in their order; where one end is unknown (unstable), so is the far side of the interval."""
    near, far = ends
    if near is None or far is None:
        return {"value": value, "low": near, "high": far}
    return {"value": value, "low": min(near, far), "high": max(near, far)}
