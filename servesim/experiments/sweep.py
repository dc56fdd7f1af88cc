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
from typing import TYPE_CHECKING, Any

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
from servesim.experiments.run_metrics import NONE_ARRIVES, check_window, measure, steady_rows
from servesim.experiments.run_warnings import run_warnings
from servesim.experiments.runner import OnProgress, Progress, Runner, open_runner
from servesim.experiments.sameness import equal_ones, equal_text
from servesim.experiments.store import Cell
from servesim.experiments.sweep_bars import SweepBars
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
        self._bars = SweepBars() if intervals else None
        self._runner, self._metrics, self._goal = runner, metrics, goal
        self._ends = (warmup, cooldown)
        self._count, self._window = replicates, window
        self._repeats: dict[str, Replicates] = {}  # by workload
        self._values: dict[tuple[str, int], dict[str, float]] = {}  # by address and replicate
        self._unstable: dict[str, bool] = {}
        self._decided: dict[str, bool] = {}
        self._reached: dict[str, list[float]] = {}  # by address: share minus target, by SLO goal
        self._busy: dict[str, list[str]] = {}
        self._cells: dict[str, tuple[Variant, Replicates, list[Cell]]] = {}  # by label
        self._labels: dict[str, str] = {}  # by address, of the variants being run
        self._best = ""
        self._best_value = np.nan
        self._inner = runner.on_progress
        runner.on_progress = self._on_progress

    def run(self, variants: Sequence[Variant]) -> None:
        """Compute the runs of some variants."""
        wanted: list[Cell] = []
        self._labels = {}
        for v in variants:
            if v.label not in self._cells:
                self._cells[v.label] = self._entry(v)
            cells = self._cells[v.label][2]
            wanted += cells
            self._labels.update({cell.address: v.label for cell in cells})
        self._runner.run(wanted)

    def _entry(self, v: Variant) -> tuple[Variant, Replicates, list[Cell]]:
        workload = repr([v.settings.get(key) for key in WORKLOAD])
        try:
            if workload not in self._repeats:
                self._repeats[workload] = replicates_of(v.settings, self._count, self._runner.objects, self._window)
        except UserError as error:
            cell = self._runner.failed(v.settings, str(error))
            return v, Replicates("seeds", ({},)), [cell]
        repeats = self._repeats[workload]
        return v, repeats, [self._runner.cell(repeats.settings(v.settings, j)) for j in range(len(repeats))]

    def ends(self) -> tuple[float, float]:
        """Return the shares of the arrivals that are left out for the first variant."""
        return next(iter(self._cells.values()))[1].margins(*self._ends)

    def _on_progress(self, progress: Progress) -> None:
        label = self._labels[progress.cell.address]
        if progress.error is None:
            self._measure(progress.cell, label)
        measured = progress.cell.address in self._unstable
        if measured and "rate" not in self._cells[label][0].axes:  # less load is not better
            value = self._mean(label, self._goal)
            sign = 1 if self._goal.better == "higher" else -1
            better = sign * value > sign * self._best_value if self._best else not np.isnan(value)
            if better and not self._unstable[progress.cell.address]:
                self._best_value = value
                self._best = f"best {self._goal.name}: {value:,.4g} {self._goal.unit}, {label or 'the run'}"
        self._inner(replace(progress, name=label, best=self._best))

    def _measure(self, cell: Cell, label: str) -> None:
        if cell.address in self._unstable:
            return
        run = self._runner.load(cell)
        v, repeats, cells = self._cells[label]
        rows = steady_rows(run, *repeats.margins(*self._ends))
        if not len(rows):
            self._runner.errors[cell.address] = NONE_ARRIVES
            return
        if self._bars is not None and cell.address == cells[0].address:
            self._bars.add(cell.address, v.settings, run.summary)
        for j in (j for j, other in enumerate(cells) if other.address == cell.address):
            part = repeats.rows(j) if len(repeats) > 1 else None
            found = measure(run, self._metrics, *repeats.margins(*self._ends), part=part)
            self._values[cell.address, j] = found
        goals = goals_of(Scenario.of(v.settings), ATTAINMENT)
        shares = shares_of(run, goals, rows)
        self._reached[cell.address] = [share - goal.share for share, goal in zip(shares, goals, strict=True)]
        if cell.address == cells[0].address:
            ends = repeats.margins(*self._ends)
            self._busy[label] = busy_notes(label or "the run", run, Scenario.of(v.settings), repeats, ends)
        self._unstable[cell.address] = run.unstable
        self._decided[cell.address] = bool(run.summary["stability"]["decided"])

    def _meets_slo(self, cells: Sequence[Cell]) -> bool | None:
        """Return whether every goal of the SLO is reached on average over replicates, or None without an SLO."""
        found = [self._reached[cell.address] for cell in cells if cell.address in self._reached]
        return bool((np.mean(found, axis=0) >= 0).all()) if found and found[0] else None

    def _mean(self, label: str, metric: Metric) -> float:
        """Return the mean of a metric over the completed replicates that have it, NaN if there are none."""
        addresses = enumerate(cell.address for cell in self._cells[label][2])
        found = [self._values[a, j][metric.name] for j, a in addresses if (a, j) in self._values]
        known = [value for value in found if not np.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    def value(self, v: Variant, metric: Metric) -> float | None:
        """Return the mean over the replicates, or None for a variant that failed or is unstable."""
        found = self._variant(v.label)
        return None if found["status"] == "failed" or is_unstable(found) else found["values"][metric.name]

    def _variant(self, label: str) -> dict[str, Any]:
        v, _, cells = self._cells[label]
        errors = [self._runner.errors.get(cell.address) for cell in cells]
        good = [cell.address for cell, error in zip(cells, errors, strict=True) if error is None]
        means = {}
        for metric in self._metrics:
            value = self._mean(label, metric)
            means[metric.name] = None if np.isnan(value) else value
        error = next((e for e in errors if e is not None), None)
        return {
            "label": label,
            "axes": v.axes,
            "status": "ok" if error is None else "failed",
            "error": error,
            "unstable": sum(self._unstable[a] for a in good),
            "decided": sum(self._decided[a] for a in good),
            "cells": [None if e is not None else c.address for c, e in zip(cells, errors, strict=True)],
            "values": means,
            "meets_slo": self._meets_slo(cells),
        }

    def document(self) -> dict[str, Any]:
        """Return the document without the axes and the sweep's settings."""
        found = [self._variant(label) for label in self._cells]
        judge_stability(found)
        usable = [v for v in found if v["status"] == "ok" and v["stability"] != "unstable"]
        groups = by_rate(usable)
        front = {
            label
            for group in groups.values()
            for label in pareto_front([v for v in group if v["meets_slo"] is not False])
        }
        for v in found:
            v["pareto"] = v["label"] in front
        entries = list(self._cells.values())
        equal = equal_ones(self._runner, [v for v, _, _ in entries], [cells for _, _, cells in entries])
        first = {label: group["labels"][0] for group in equal for label in group["labels"][1:]}
        for v in found:
            v["equal_to"] = first.get(v["label"])
        best = best_by_rate(usable, self._goal)
        for entry in best:
            entry["equal"] = [label for label, other in first.items() if other == entry["label"]]
        runs = {label: cells[0].address for label, (_, _, cells) in self._cells.items()}
        error = self._bars.judge(found, groups, best, self._goal.name, first, runs) if self._bars is not None else None
        shared = [v.settings for v, _, _ in entries]
        judged = {
            "workload": shared_settings(shared),
            "replicates": {"kind": entries[0][1].kind, "count": len(entries[0][1])},
            "metrics": [m.document() for m in self._metrics],
            "variants": found,
            "equal": equal,
            "best": best[-1] if best else None,
            "best_by_rate": best if by_rate(found).keys() != {None} else None,
            "model_error": error,
            **split_notes(
                [
                    *_notes(found),
                    *run_warnings(self._runner, {label: cells[0] for label, (_, _, cells) in self._cells.items()}),
                    *(note for v in usable for note in self._busy.get(v["label"], [])),
                    *map(equal_text, equal),
                    *(note for _, repeats, _ in entries for note in repeats.notes),
                ]
            ),
        }
        return {"answer": answer(judged), **judged}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run."""
        rows = []
        for label, (v, _, cells) in self._cells.items():
            for i, cell in enumerate(cells):
                error = self._runner.errors.get(cell.address)
                values = self._values.get((cell.address, i), {})
                rows.append(
                    {
                        "label": label,
                        **{key: str(value) for key, value in v.axes.items()},
                        "replicate": i,
                        "address": cell.address if error is None else None,
                        "status": "ok" if error is None else "failed",
                        "error": error,
                        "unstable": self._unstable.get(cell.address),
                        **{m.name: values.get(m.name) for m in self._metrics},
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
