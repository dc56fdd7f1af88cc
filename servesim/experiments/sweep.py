"""Sweeps: every combination of the axes' values, with each run computed once and stored by its content.

Written under `out`:

    sweep.json           the document below
    sweep.parquet        tidy, one row per run: label, one column per axis (as text), replicate, address, status, error,
                         unstable, and one column per metric (null: nothing to measure)
    cells/<address>/     one result directory per run, as `servesim run --out` writes it

sweep.json, keys sorted, NaN as null:

    schema      "servesim.sweep/1"
    settings    warmup, cooldown, best_by, trials (null: all combinations)
    workload    settings that all runs share
    axes        {setting: [values]} of the axes with several values
    replicates  {kind: "seeds" | "windows", count}
    metrics     [{name, unit, better, scale, latency}]
    variants    [{label, axes, status: "ok" | "failed", error: null or text, unstable: number of unstable runs,
                decided: number of runs long enough to decide, stability: "stable" | "unstable" | "undecided" (null:
                failed), cells: [address or null by replicate], values: {metric: mean over replicates}, meets_slo:
                whether every goal of the SLO is reached (99 % of requests, unless it states another share; null: no
                SLO), pareto, equal_to: null or the label of the first variant that served every request at the same
                times, at the same price; with intervals also bars:
                {says, and for each mean latency low and high, between which eight of ten measured servers lie}}], in
                the order of the axes
    equal       [{labels, why: null or text}]: groups of such variants
    best        null or {label, metric, value, rate, equal: [labels of variants equal to it]}: the best
                of the variants that are stable and did not fail; if rate is an axis, at the highest rate that has
                several such variants; with intervals also sure: share of measured pairs for which it stays the best,
                against: the variant from which it is least surely distinguished (null: not known), says}
    best_by_rate  null or, if rate is an axis, such an entry for each rate that has several such variants
    model_error null, or {level, says, front: [{label, rate, on: whether it is on the front, told: distinguished from
                others (null: not known), sure: share of measured pairs for which that holds, against: the variant from
                which it is least surely distinguished, low, high: p99 end-to-end latency by the ratio to that variant,
                ms, says}]}: members of the fronts, and variants that may belong there
                (servesim.experiments.front_error)
    answer      sentence that names the best variants
    warnings    [sentences] that could change the decision
    notes       [sentences]

Variants are ranked within a rate, since every server looks better at a lower one. A variant that is unstable at one
rate counts as unstable at every higher rate, whatever a run that ended too soon indicates. `pareto` means that the
variant meets the SLO, if there is one, and that no other stable variant at this rate that also meets the SLO is at
least as good in price per million tokens, p99 end-to-end latency and output throughput, and better in at least one of
them.

A rerun, even after a crash, computes only the runs that are not in cells/. Failed runs are tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from servesim.contracts.warn import Warn, split_notes
from servesim.errors import UserError
from servesim.experiments.axes import Variant, axis_values, load_grid, product
from servesim.experiments.documents import answered
from servesim.experiments.goals import goals_of
from servesim.experiments.metrics import METRICS, Metric, metrics_of
from servesim.experiments.named import failures, several
from servesim.experiments.names import check_names
from servesim.experiments.objects import Objects
from servesim.experiments.outcome import ATTAINMENT, busy_notes, shares_of
from servesim.experiments.ranking import PARETO, best_by_rate, by_rate, judge_stability, pareto_front
from servesim.experiments.replicates import WORKLOAD, Replicates, check_count, replicates_of
from servesim.experiments.run_metrics import NONE_ARRIVES, Slice, check_window, measure
from servesim.experiments.run_warnings import run_warnings
from servesim.experiments.runner import OnProgress, Progress, Runner, open_runner
from servesim.experiments.sameness import equal_ones, equal_text
from servesim.experiments.store import Cell
from servesim.experiments.sweep_bars import First, judged_errors
from servesim.experiments.sweep_words import answer
from servesim.experiments.variants import own_features_of, shared_settings
from servesim.experiments.verdicts import is_unstable
from servesim.plugins.trust import takes_trust
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "servesim.sweep/1"
SWEEP = "sweep.json"


@takes_trust
def sweep(
    scenario: str | Path | Mapping[str, Any] | None = None,
    *,
    replicates: int | None = None,
    window: int | None = None,
    metrics: Sequence[Any] | str | None = None,
    best_by: str | None = None,
    trials: int | None = None,
    warmup: float | None = None,
    cooldown: float | None = None,
    jobs: int | None = None,
    executor: str = "local",
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    overwrite: bool = False,
    intervals: bool = True,
    **axes: Any,
) -> pd.DataFrame:
    """Run every combination of the axes. Return one row per run. The document is in `.attrs["document"]`.

    `scenario` may be a YAML file or mapping with a key `axes`: {setting: [values]}; keywords override both. A run that
    fails is recorded with its error, and the others continue. `best_by` is the metric that decides the best so far (by
    default goodput with an SLO, else mean end-to-end latency). `trials` makes Optuna (extra `search`) choose that many
    combinations instead of trying all; it optimizes best_by, which may then be several metrics separated by commas.
    `overwrite` lets `out` replace another experiment's document. `intervals` adds error bars for means, the front and
    the best; they take no extra runs. `trust` allows code to run that is named only in the scenario's file. Raises
    UserError if the question is invalid.
    """
    check_window(warmup or 0.0, cooldown or 0.0)
    check_count(1 if replicates is None else replicates)
    objects = Objects()
    settings, lists = load_grid(objects.named(scenario), objects.named(axes))
    variants = product(settings, lists)
    check_names(variants, objects)
    known = Scenario.of(variants[0].settings)
    slo = known.slo or known.slo_classes
    best_by = best_by if best_by is not None else "request_goodput" if slo else "e2el_mean"
    goals = metrics_of(best_by, slo, own_features_of(variants))
    wanted = metrics_of(metrics, slo)
    wanted += [m for m in (*goals, *(METRICS[name] for name in PARETO)) if m not in wanted]
    shared = shared_settings([v.settings for v in variants])
    with open_runner(out, SWEEP, executor, jobs, on_progress, objects, shared, overwrite) as runner:
        table = Table(runner, wanted, warmup, cooldown, goals[0], replicates, window, intervals)
        if trials is None:
            table.run(variants)
        else:
            from servesim.experiments.optuna_search import search

            search(table, variants, goals, trials)
        ends = dict(zip(("warmup", "cooldown"), table.ends(), strict=True))
        how = {**ends, "best_by": [m.name for m in goals], "trials": trials}
        document = {
            "schema": SCHEMA,
            "settings": how,
            "axes": {k: v for k, given in lists.items() if len(v := axis_values(k, given)) > 1},
            **table.document(),
        }
        rows = table.rows()
        return answered(document, rows, out, SWEEP, {name: [row[name] for row in rows] for name in rows[0]})


class Entry(NamedTuple):
    """Combination with its replicates, and the cell of each."""

    variant: Variant
    repeats: Replicates
    cells: list[Cell]


class Measured(NamedTuple):
    """Figures of one run."""

    values: dict[int, dict[str, float]]
    """Metrics of each replicate that is a part of the run."""
    margins: list[float]
    """Share of good requests minus the share required, by goal of the SLO."""
    busy: list[str]
    """Notes on busy periods that the figures of a whole recorded trace hide."""
    unstable: bool
    decided: bool
    """Whether the run is long enough to tell whether it is stable."""
    first: First | None
    """Error of the combination, if this is its first run and error bars are asked for."""


class Table:
    """Table of a sweep's runs, filled in as they complete."""

    def __init__(
        self,
        runner: Runner,
        metrics: Sequence[Metric],
        warmup: float | None,
        cooldown: float | None,
        goal: Metric,
        replicates: int | None = None,
        window: int | None = None,
        intervals: bool = True,
    ) -> None:
        self._runner, self._metrics, self._goal, self._intervals = runner, metrics, goal, intervals
        self._ends, self._count, self._window = (warmup, cooldown), replicates, window
        self._repeats: dict[str, Replicates] = {}  # by workload
        self._entries: dict[str, Entry] = {}  # by label
        self._measured: dict[str, Measured] = {}  # by address
        self._labels: dict[str, str] = {}  # by address, of the variants being run
        self._best, self._best_value = "", np.nan
        self._inner = runner.on_progress
        runner.on_progress = self._on_progress

    def run(self, variants: Sequence[Variant]) -> None:
        """Compute the runs of some variants."""
        self._entries |= {v.label: self._entry(v) for v in variants if v.label not in self._entries}
        wanted = [(cell, v.label) for v in variants for cell in self._entries[v.label].cells]
        self._labels = {cell.address: label for cell, label in wanted}
        self._runner.run([cell for cell, _ in wanted])

    def _entry(self, v: Variant) -> Entry:
        workload = repr([v.settings.get(key) for key in WORKLOAD])
        try:
            if workload not in self._repeats:
                self._repeats[workload] = replicates_of(v.settings, self._count, self._runner.objects, self._window)
        except UserError as error:
            return Entry(v, Replicates("seeds", ({},)), [self._runner.failed(v.settings, str(error))])
        repeats = self._repeats[workload]
        return Entry(v, repeats, [self._runner.cell(repeats.settings(v.settings, j)) for j in range(len(repeats))])

    def ends(self) -> tuple[float, float]:
        """Return the shares of the arrivals that are left out for the first variant."""
        return next(iter(self._entries.values())).repeats.margins(*self._ends)

    def _on_progress(self, progress: Progress) -> None:
        address, label = progress.cell.address, self._labels[progress.cell.address]
        entry = self._entries[label]
        if progress.error is None and address not in self._measured:
            self._measure(progress.cell, entry)
        measured = self._measured.get(address)
        if measured is not None and "rate" not in entry.variant.axes:  # less load is not better
            value = self._mean(entry, self._goal)
            sign = 1 if self._goal.better == "higher" else -1
            better = sign * value > sign * self._best_value if self._best else not np.isnan(value)
            if better and not measured.unstable:
                self._best_value = value
                self._best = f"best {self._goal.name}: {value:,.4g} {self._goal.unit}, {label or 'the run'}"
        self._inner(replace(progress, name=label, best=self._best))

    def _measure(self, cell: Cell, entry: Entry) -> None:
        v, repeats, cells = entry
        run, scenario, ends = self._runner.load(cell), Scenario.of(v.settings), repeats.margins(*self._ends)
        rows, goals = Slice.of(run, *ends).rows, goals_of(scenario, ATTAINMENT)
        if not len(rows):
            self._runner.errors[cell.address] = NONE_ARRIVES
            return
        mine = [j for j, other in enumerate(cells) if other.address == cell.address]
        self._measured[cell.address] = Measured(
            values={j: measure(run, self._metrics, *ends, part=repeats.rows(j)) for j in mine},
            margins=[share - g.share for share, g in zip(shares_of(run, goals, rows), goals, strict=True)],
            busy=busy_notes(v.label or "the run", run, scenario, repeats, ends),
            unstable=run.unstable,
            decided=bool(run.summary["stability"]["decided"]),
            first=First.of(v.settings, run.summary) if self._intervals and 0 in mine else None,
        )

    def _mean(self, entry: Entry, metric: Metric) -> float:
        """Return the mean of a metric over the completed replicates that have it, NaN if there are none."""
        runs = [self._measured.get(cell.address) for cell in entry.cells]
        found = [one.values[j][metric.name] for j, one in enumerate(runs) if one is not None]
        known = [value for value in found if not np.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    def value(self, v: Variant, metric: Metric) -> float | None:
        """Return the mean over the replicates, or None for a variant that failed or is unstable."""
        found = self._described(self._entries[v.label])
        return None if found["status"] == "failed" or is_unstable(found) else found["values"][metric.name]

    def _described(self, entry: Entry) -> dict[str, Any]:
        """Return the entry of a combination in the document, as far as other combinations do not matter to it."""
        v, _, cells = entry
        errors = [self._runner.errors.get(cell.address) for cell in cells]
        error = next((e for e in errors if e is not None), None)
        good = [self._measured[cell.address] for cell, e in zip(cells, errors, strict=True) if e is None]
        means = {metric.name: self._mean(entry, metric) for metric in self._metrics}
        goals = [one.margins for one in good if one.margins]
        return {
            "label": v.label,
            "axes": v.axes,
            "status": "ok" if error is None else "failed",
            "error": error,
            "unstable": sum(one.unstable for one in good),
            "decided": sum(one.decided for one in good),
            "cells": [None if e is not None else c.address for c, e in zip(cells, errors, strict=True)],
            "values": {name: None if np.isnan(value) else value for name, value in means.items()},
            "meets_slo": bool((np.mean(goals, axis=0) >= 0).all()) if goals else None,
        }

    def document(self) -> dict[str, Any]:
        """Return the document without the axes and the sweep's settings."""
        entries = list(self._entries.values())
        found = [self._described(entry) for entry in entries]
        judge_stability(found)
        usable = [v for v in found if v["status"] == "ok" and v["stability"] != "unstable"]
        groups = by_rate(usable)
        fronts = (pareto_front([v for v in group if v["meets_slo"] is not False]) for group in groups.values())
        front = {label for labels in fronts for label in labels}
        equal = equal_ones(self._runner, [entry.variant for entry in entries], [entry.cells for entry in entries])
        same = {label: group["labels"][0] for group in equal for label in group["labels"][1:]}
        for v in found:
            v |= {"pareto": v["label"] in front, "equal_to": same.get(v["label"])}
        best = best_by_rate(usable, self._goal)
        for entry in best:
            entry["equal"] = [label for label, other in same.items() if other == entry["label"]]
        firsts = {entry.variant.label: entry.cells[0] for entry in entries}
        measured = {label: one for label, cell in firsts.items() if (one := self._measured.get(cell.address))}
        known = {label: one.first for label, one in measured.items() if one.first is not None}
        error = judged_errors(found, groups, best, self._goal.name, same, known) if self._intervals else None
        judged = {
            "workload": shared_settings([entry.variant.settings for entry in entries]),
            "replicates": {"kind": entries[0].repeats.kind, "count": len(entries[0].repeats)},
            "metrics": [m.document() for m in self._metrics],
            "variants": found,
            "equal": equal,
            "best": best[-1] if best else None,
            "best_by_rate": best if by_rate(found).keys() != {None} else None,
            "model_error": error,
            **split_notes(
                [
                    *_notes(found),
                    *run_warnings(self._runner, firsts),
                    *(note for v in usable for note in measured[v["label"]].busy),
                    *map(equal_text, equal),
                    *(note for entry in entries for note in entry.repeats.notes),
                ]
            ),
        }
        return {"answer": answer(judged), **judged}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run."""
        rows = []
        for label, (v, _, cells) in self._entries.items():
            for j, cell in enumerate(cells):
                error, measured = self._runner.errors.get(cell.address), self._measured.get(cell.address)
                rows.append(
                    {
                        "label": label,
                        **{key: str(value) for key, value in v.axes.items()},
                        "replicate": j,
                        "address": cell.address if error is None else None,
                        "status": "ok" if error is None else "failed",
                        "error": error,
                        "unstable": None if measured is None else measured.unstable,
                        **{m.name: None if measured is None else measured.values[j][m.name] for m in self._metrics},
                    }
                )
        return rows


def _notes(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    notes: list[str] = failures([(v["label"] or "the run", v["error"]) for v in variants if v["status"] == "failed"])
    unstable = [v["label"] for v in variants if v["stability"] == "unstable"]
    if unstable:
        said = "unstable, so not ranked (the queue grows as long as requests arrive; try a lower --rate)"
        notes.append(Warn(f"{said}: {several(unstable)}"))
    short = [v["label"] or "the run" for v in variants if v["stability"] == "undecided"]
    if short:
        notes.append(
            Warn(f"too short to tell whether the queue grows without bound (increase --requests): {several(short)}")
        )
    return notes
