"""What of a compared p99, goodput or price may be the model's error: the variant again with its times stretched.

By the spread of ratios of measured pairs, as of means (servesim.experiments.model_error), and the rule of
servesim.run.error_bars: a server whose times are all e times as long, at rate r, is the simulated one at
rate e r with every time multiplied by e, queue and all. Two more runs of each variant give both ends, of the first
seed (or of the whole recorded trace) and with its arrivals; what they change is laid on the change over all
replicates. The baseline stays as simulated, since errors of ratios are what pairs of measured servers say. Propagated,
not validated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.experiments.axes import Variant
from servesim.experiments.front_error import FLOWS, STRETCHED
from servesim.experiments.metrics import METRICS, Metric
from servesim.experiments.model_error import LATENCIES, ratio_spread
from servesim.experiments.run_metrics import Run, measure
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, shipped
from servesim.intervals.pairs import WORDS, Spread
from servesim.run.error_bars import SAYS, unscaled
from servesim.run.scenario import Scenario
from servesim.run.sections import factor_of
from servesim.run.trace_source import open_scenario

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Stretched:
    """A variant with its times stretched towards one end."""

    cell: Cell
    by: Mapping[str, float]
    """By latency: how much longer it is than simulated; durations are so by that of E2E."""

    def value(self, metric: str, value: float) -> float:
        """Return a figure of the run as the stretched server has it."""
        latency = metric.rpartition("_")[0]
        times = self.by["e2el"]
        if metric in METRICS and METRICS[metric].latency:
            return value * self.by.get(latency, times)
        if metric.startswith("usd_per_million"):
            return value * times
        return value / times if metric in (*FLOWS, "request_goodput") else value


def scaled(metric: str) -> bool:
    """Whether a metric is one that stretching has a rule for, and has no error bars of its own kind."""
    if metric in LATENCIES or metric not in METRICS:
        return False
    rates = (*FLOWS, "request_goodput", "slo_attainment")
    return METRICS[metric].latency or metric.startswith("usd_per_million") or metric in rates


def propagated_changes(
    runner: Runner,
    variants: Sequence[Variant],
    firsts: Sequence[Cell | None],
    sides: Sequence[Case | str],
    rows: Sequence[Row],
    ends: tuple[float, float],
) -> tuple[list[dict[str, Any]], int]:
    """Return entries of `model_error` for the rows whose metric is `scaled`, and how many more runs that took.
    `variants`, `firsts` (their first runs) and `sides`: the baseline first; `ends`: the shares of arrivals left out."""
    wanted = [METRICS[name] for name in dict.fromkeys(row["metric"] for row in rows) if scaled(name)]
    found: list[dict[str, Any]] = []
    asked: dict[str, tuple[Spread, list[Stretched]]] = {}
    words: dict[str, str] = {}
    for variant, first, side in zip(variants[1:], firsts[1:], sides[1:], strict=True):
        what = _ends(runner, first, side, sides[0])
        if isinstance(what, str):
            words[variant.label] = what
        else:
            asked[variant.label] = what
    cells = [one.cell for _, both in asked.values() for one in both]
    names = {one.cell.address: f"{label}, times x {one.by['e2el']:.2f}" for label, (_, b) in asked.items() for one in b}
    runner.run(cells, names)
    by_label = {variant.label: first for variant, first in zip(variants, firsts, strict=True)}
    for label in [variant.label for variant in variants[1:]]:
        mine = [row for row in rows if row["variant"] == label and row["change"] is not None]
        mine = [row for row in mine if scaled(row["metric"])]
        if label in words:
            found += [_entry(row, None, None, f"none: {words[label]}") for row in mine]
        elif mine:
            first = by_label[label]
            assert first is not None
            pair, both = asked[label]
            own = measure(runner.load(first), wanted, *ends)
            drawn = [_measured(runner, one, wanted, ends) for one in both]
            found += [_of_row(row, own, drawn, pair) for row in mine]
    return found, len({cell.address for cell in cells})


def _ends(
    runner: Runner, first: Cell | None, side: Case | str, base: Case | str
) -> tuple[Spread, list[Stretched]] | str:
    """Return the two stretched runs of a variant, or in words why there are none."""
    spreads = {}
    for key, metric in STRETCHED.items():
        what = ratio_spread(shipped(), side, base, metric)
        if isinstance(what, str):
            return what
        spreads[key] = what
    if first is None:
        return "it failed"
    scenario = Scenario.of(first.settings)
    waits = not scenario.stream and open_scenario(scenario, runner.objects.get(scenario.trace)).after is not None
    if why := unscaled(scenario, waits):
        return why
    both = [{key: one.factor**sign for key, one in spreads.items()} for sign in (-1, 1)]
    return spreads["e2el"], [Stretched(runner.cell({**first.settings, **_settings(scenario, by)}), by) for by in both]


def _settings(scenario: Scenario, by: Mapping[str, float]) -> dict[str, Any]:
    """Return what is simulated in place of a server whose times are stretched."""
    times = by["e2el"]
    rate = (
        scenario.rate * times if isinstance(scenario.rate, float) else f"{(factor_of(scenario.rate) or 1) * times!r}x"
    )
    found: dict[str, Any] = {"rate": rate}
    if scenario.slo:
        found["slo"] = {name: limit / by.get(name, times) for name, limit in scenario.slo.items()}
    if scenario.slo_classes:
        found["slo_classes"] = {
            c: {name: limit / by.get(name, times) for name, limit in limits.items()}
            for c, limits in scenario.slo_classes.items()
        }
    return found


def _measured(
    runner: Runner, one: Stretched, metrics: Sequence[Metric], ends: tuple[float, float]
) -> dict[str, float] | None:
    """Return the figures of a stretched run; None of one whose queue grows without end, or that failed."""
    if one.cell.address in runner.errors:
        return None
    run: Run = runner.load(one.cell)
    if run.unstable:
        return None
    return {name: one.value(name, value) for name, value in measure(run, metrics, *ends).items()}


def _of_row(
    row: Row, own: Mapping[str, float], drawn: Sequence[Mapping[str, float] | None], what: Spread
) -> dict[str, Any]:
    """Lay what stretching changes on a row's change; null at an end that grows without one."""
    name = row["metric"]
    changes: list[float | None] = []
    for one in drawn:
        if one is None or math.isnan(one[name]) or math.isnan(own[name]):
            changes.append(None)
        elif row["scale"] == "ratio":
            changes.append((1 + row["change"]) * one[name] / own[name] - 1 if own[name] else None)
        else:
            changes.append(row["change"] + one[name] - own[name])
    known = [change for change in changes if change is not None]
    if len(known) == 2:
        low, high = min(*known, row["change"]), max(*known, row["change"])
        return _entry(row, low, high, SAYS, WORDS[what.kind])
    # One end is open: the better of the two is the one at which the times are shorter.
    near = changes[0]
    low, high = (near, None) if row["better"] == "lower" else (None, near)
    return _entry(row, low, high, SAYS if near is not None else "none: a queue grows without end", WORDS[what.kind])


def _entry(row: Row, low: float | None, high: float | None, says: str, differ_in: str = "") -> dict[str, Any]:
    found = {"variant": row["variant"], "metric": row["metric"], "change": row["change"], "scale": row["scale"]}
    return {**found, "low": low, "high": high, "level": LEVEL, "says": says, "differ_in": differ_in}
