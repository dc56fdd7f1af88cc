"""Error of the model in a change between variants, from the spread of the ratios of measured pairs.

It is reported next to the interval over workloads (replicates), never within it: more replicates narrow that interval
but not this error. For mean latencies, the ratios come from measured pairs of servers. For a p99, goodput or price, the
variant is run again with its times stretched (servesim.run.stretched). Two more runs of each variant give the two ends,
for the first seed's arrivals (or the whole recorded trace); the resulting difference is applied to the change over all
replicates. The baseline stays as simulated, since the pairs give the errors of ratios. The error is propagated, not
validated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from servesim.experiments.metrics import METRICS, Metric, metric_label
from servesim.experiments.named import grouped, several
from servesim.experiments.run_metrics import measure
from servesim.experiments.runner import Runner
from servesim.experiments.store import Cell
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, shipped
from servesim.intervals.pairs import WORDS, Spread
from servesim.metrics.words import number
from servesim.run.error_bars import intervals, side_of
from servesim.run.scenario import Scenario
from servesim.run.stretched import PAIRED, SAYS, Stretch, latency_of, ratio_spread, unscaled
from servesim.run.trace_source import open_scenario

Row = Mapping[str, Any]
MEANS = tuple(f"{key}_mean" for key in PAIRED)
"""Metrics for which ratios of measured servers are known."""


def scaled(metric: str) -> bool:
    """Return whether a metric's error can be derived by stretching and no other kind of error bars exists for it."""
    return metric not in MEANS and METRICS[metric].becomes != ""


class Ends(NamedTuple):
    """Variant, and the runs simulated in its place for both ends of the error interval."""

    first: Cell
    differ_in: str
    """Difference from the baseline, in words."""
    runs: Sequence[tuple[Stretch, Cell]]
    """Runs whose times are as short, and as long, as those of one in ten measured pairs."""


def model_errors(
    runner: Runner, firsts: Mapping[str, Cell | None], rows: Sequence[Row], steady: tuple[float, float]
) -> dict[str, Any]:
    """Return `model_error`, `error_runs` and `baseline_bars` of the document (servesim.experiments.compare). `firsts`
    holds the first run of each variant by label, or None if it failed, beginning with the baseline's. `steady` holds
    the shares of arrivals left out at both ends."""
    summaries = {label: None if cell is None else runner.load(cell).summary for label, cell in firsts.items()}
    base, *others = firsts
    sides = {label: side_of(summary) for label, summary in summaries.items()}
    spreads = {label: spreads_of(sides[label], sides[base]) for label in others}
    asked = {label: _ends(runner, firsts[label], spreads[label]) for label in others}
    known = [(label, ends) for label, ends in asked.items() if isinstance(ends, Ends)]
    names = {cell.address: f"{label}, {by.words}" for label, ends in known for by, cell in ends.runs}
    runner.run([cell for _, ends in known for _, cell in ends.runs], names)
    changed = [row for row in rows if row["variant"] in spreads and row["change"] is not None]
    found = [mean_error(row, spreads[row["variant"]]) for row in changed if row["metric"] in MEANS]
    for label, ends in asked.items():
        mine = [row for row in changed if row["variant"] == label and scaled(row["metric"])]
        if isinstance(ends, str):
            found += [_entry(row, None, None, f"none: {ends}") for row in mine]
        elif mine:
            found += _changes(runner, ends, mine, steady)
    own = summaries[base]
    return {
        "model_error": found,
        "error_runs": len(names),
        "baseline_bars": None if own is None else intervals(own),
    }


def spreads_of(side: Case | str, base: Case | str) -> dict[str, Spread] | str:
    """Return the spread of each latency's ratio to the baseline's, or the reason it is not known."""
    found = {}
    for key, metric in PAIRED.items():
        what = ratio_spread(shipped(), side, base, metric)
        if isinstance(what, str):
            return what
        found[key] = what
    return found


def mean_error(row: Row, spreads: Mapping[str, Spread] | str) -> dict[str, Any]:
    """Return the possible error of a mean latency's change, from measured pairs."""
    found = {"variant": row["variant"], "metric": row["metric"], "change": row["change"]}
    if isinstance(spreads, str):
        return {**found, "low": None, "high": None, "level": LEVEL, "says": spreads}
    ratio, what = 1 + row["change"], spreads[latency_of(row["metric"])]
    ends = {"low": ratio / what.factor - 1, "high": ratio * what.factor - 1}
    return {**found, **ends, "level": LEVEL, "says": what.says, "differ_in": WORDS[what.kind]}


def _ends(runner: Runner, first: Cell | None, spreads: Mapping[str, Spread] | str) -> Ends | str:
    """Return the runs to simulate in place of a variant, or the reason there are none."""
    if isinstance(spreads, str):
        return spreads
    if first is None:
        return "it failed"
    scenario = Scenario.of(first.settings)
    waits = not scenario.stream and open_scenario(scenario, runner.objects.get(scenario.trace)).after is not None
    if why := unscaled(scenario, waits):
        return why
    both = [Stretch({key: one.factor**sign for key, one in spreads.items()}) for sign in (-1, 1)]
    runs = [(by, runner.cell({**first.settings, **by.settings(scenario)})) for by in both]
    return Ends(first, WORDS[spreads["e2el"].kind], runs)


def _changes(runner: Runner, ends: Ends, rows: Sequence[Row], steady: tuple[float, float]) -> Iterable[dict[str, Any]]:
    """Yield the entries of a variant's rows."""
    metrics = [METRICS[row["metric"]] for row in rows]
    own = measure(runner.load(ends.first), metrics, *steady)
    drawn = [_measured(runner, by, cell, metrics, steady) for by, cell in ends.runs]
    for row in rows:
        name = row["metric"]
        fast, slow = (_change(row, own[name], None if one is None else one[name]) for one in drawn)
        if fast is not None and slow is not None:
            low, high = min(fast, slow, row["change"]), max(fast, slow, row["change"])
        else:  # open-ended: the better of the two has the shorter times
            low, high = (fast, None) if row["better"] == "lower" else (None, fast)
        says = "none: the queue grows without bound" if fast is None else SAYS
        yield _entry(row, low, high, says, ends.differ_in)


def _measured(
    runner: Runner, by: Stretch, cell: Cell, metrics: Sequence[Metric], steady: tuple[float, float]
) -> dict[str, float] | None:
    """Return the figures of a stretched server, or None if its run failed or its queue grows without bound."""
    if cell.address in runner.errors:
        return None
    run = runner.load(cell)
    if run.unstable:
        return None
    values = measure(run, metrics, *steady)
    return {metric.name: by.value(metric.name, metric.becomes, values[metric.name]) for metric in metrics}


def _change(row: Row, own: float, stretched: float | None) -> float | None:
    """Return a row's change with the effect of stretching applied, or None if there is no such effect."""
    if stretched is None or math.isnan(stretched) or math.isnan(own):
        return None
    change: float = row["change"]
    if row["scale"] == "ratio":
        return (1 + change) * stretched / own - 1 if own else None
    return change + stretched - own


def _entry(row: Row, low: float | None, high: float | None, says: str, differ_in: str = "") -> dict[str, Any]:
    found = {"variant": row["variant"], "metric": row["metric"], "change": row["change"], "scale": row["scale"]}
    return {**found, "low": low, "high": high, "level": LEVEL, "says": says, "differ_in": differ_in}


def sentences(found: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Return a sentence for each change of a mean whose model error is known, and one per variant on changes whose
    error is propagated."""
    means = [one for one in found if one["metric"] in MEANS and one["low"] is not None]
    said = [
        f"{one['variant']}: {metric_label(one['metric'])} {100 * one['change']:+.1f} % against {baseline}, "
        f"{100 * one['level']:.0f} % interval {100 * one['low']:+.0f} to {100 * one['high']:+.0f} % from measured "
        f"pairs of {one['differ_in']}{'' if _told(one) else ': undecided'}"
        for one in means
    ]
    known = [one for one in found if one["metric"] not in MEANS and not (one["low"] is None and one["high"] is None)]
    drawn = grouped((one["variant"], one) for one in known)
    return [*said, *(_propagated(name, ones, baseline) for name, ones in drawn.items())]


def _propagated(variant: str, ones: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """Describe a variant's changes whose error is propagated."""
    parts = [f"{metric_label(one['metric'])} {_span(one)}" for one in ones]
    return (
        f"{variant} against {baseline}, {100 * ones[0]['level']:.0f} % interval from pairs of {ones[0]['differ_in']}, "
        f"{ones[0]['says']}: {', '.join(parts)}"
    )


def _span(one: Mapping[str, Any]) -> str:
    unit, times = METRICS[one["metric"]].unit if one["metric"] in METRICS else "", 1.0  # of a feature not loaded here
    if one["scale"] == "ratio":
        unit, times = "%", 100.0
    elif unit == "share":
        unit, times = "points", 100.0
    style = "+.0f" if unit == "%" else "+.3g"
    ends = ("unstable" if one[end] is None else format(times * one[end], style) for end in ("low", "high"))
    return f"{' to '.join(ends)} {unit}".strip()


def baseline_sentence(bars: Mapping[str, Any] | None, baseline: str) -> str:
    """Return a sentence with the range of the baseline's own means on measured servers, or the reason that it is not
    known. Return an empty string if error bars were left out."""
    if bars is None:
        return ""
    if bars["kind"] is None:
        return f"no error bars for {baseline}: {bars['says']}"
    spans = (
        f"{metric_label(f'{key}_mean')} {number(bars[key]['low'])} to {number(bars[key]['high'])} ms" for key in PAIRED
    )
    return f"error bars of {baseline}: {', '.join(spans)}, {100 * bars['level']:.0f} % interval; {bars['says']}"


def words(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a note for each reason for missing error bars, naming the variants affected."""
    missing = [one for one in found if one["low"] is None and one["high"] is None]
    said = grouped(dict.fromkeys((one["says"].removeprefix("none: "), one["variant"]) for one in missing))
    return [f"no error bars of the model for {several(names, ', ')}: {why}" for why, names in said.items()]


def _told(one: Mapping[str, Any]) -> bool:
    """Return whether the interval excludes a change of zero."""
    return not (math.isclose(one["low"], 0) or one["low"] < 0 < one["high"])
