"""Document of a comparison, built from the runs of its variants (see servesim.experiments.compare for its fields)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.warn import Warn, split_notes
from servesim.errors import UserError
from servesim.experiments.axes import Variant
from servesim.experiments.compare_error import model_errors
from servesim.experiments.compare_error import words as error_words
from servesim.experiments.drill import divergence_text, drill_down
from servesim.experiments.goals import goals_of
from servesim.experiments.goals_missed import Miss, missed_text, worst_miss
from servesim.experiments.metrics import METRICS, Metric, metric_label
from servesim.experiments.named import failures, grouped, several
from servesim.experiments.outcome import ATTAINMENT, busy_notes, shares_of
from servesim.experiments.replicates import Replicates
from servesim.experiments.run_metrics import NONE_ARRIVES, Slice, measure
from servesim.experiments.run_warnings import run_warnings
from servesim.experiments.runner import Runner
from servesim.experiments.sameness import Equal, described, equal_ones, equal_text, warnings_of
from servesim.experiments.store import Cell
from servesim.experiments.variants import shared_settings
from servesim.experiments.verdicts import AT_THE_RATE, TOO, Settings, is_unstable, judge, ranking, sentence, set_by_rate
from servesim.run.scenario import Scenario

Row = dict[str, Any]
SCHEMA = "servesim.comparison/1"
AS_CHEAP = (
    "price per token cannot differ, because at a fixed rate the same GPUs serve the same tokens in the same time. "
    "servesim capacity finds the highest rate that each variant can sustain."
)


class Values(NamedTuple):
    """Variant with its runs, and the values obtained from them."""

    variant: Variant
    cells: Sequence[Cell]
    values: NDArray[np.float64]
    """Values of shape (replicates, metrics), NaN if there is nothing to measure."""
    whole: dict[str, float]
    """Values over the whole trace by metric, if replicates are windows of it."""
    entry: dict[str, Any]
    """Entry of the variant in the document."""
    busy: list[str]
    """Notes on busy periods that the figures of the whole trace hide."""
    miss: Miss | None
    """SLO goal that is missed by most."""

    @classmethod
    def of(
        cls,
        runner: Runner,
        v: Variant,
        cells: Sequence[Cell],
        repeats: Replicates,
        metrics: Sequence[Metric],
        settings: Settings,
    ) -> Values:
        """Return the values of a variant, computed from its runs. Failed runs are those in `runner.errors`."""
        busy: list[str] = []
        values = np.full((len(cells), len(metrics)), np.nan)
        unstable, whole, ends = 0, {}, (settings.warmup, settings.cooldown)
        hourly: list[float] = []
        goals, shares = goals_of(Scenario.of(v.settings), ATTAINMENT), []
        for j, cell in enumerate(cells):
            if cell.address not in runner.errors:
                if j == 0 or cell.address != cells[j - 1].address:  # windows are parts of one run
                    run = runner.load(cell)
                    steady = Slice.of(run, *ends)
                    if not len(steady.rows):
                        runner.errors[cell.address] = NONE_ARRIVES
                        continue
                    hourly.append(steady.usd_per_hour)
                    shares.append(shares_of(run, goals, steady.rows))
                unstable += run.unstable
                found = measure(run, metrics, *ends, part=repeats.rows(j))
                values[j] = [found[m.name] for m in metrics]
                if repeats.kind == "windows" and j == 0:
                    whole = measure(run, metrics, *ends)
                    busy = busy_notes(v.label, run, Scenario.of(v.settings), repeats, ends)
        entry = {**described(runner, v, cells), "unstable": unstable}
        if entry["usd_per_hour"] is None and entry["error"] is None:  # an autoscaler sets the number of GPUs
            entry["usd_per_hour"] = float(np.mean(hourly))
        return cls(v, cells, values, whole, entry, busy, worst_miss(goals, shares))


def judged_document(
    runner: Runner,
    found: Sequence[Values],
    repeats: Replicates,
    metrics: Sequence[Metric],
    settings: Settings,
    intervals: bool,
) -> dict[str, Any]:
    """Return the part of the document that depends on the kind of comparison."""
    variants, entries = [one.variant for one in found], [one.entry for one in found]
    base, error = variants[0].label, entries[0]["error"]
    if error is not None:
        raise UserError(f"compare: the baseline {base} cannot run: {error}")
    values = np.stack([one.values for one in found])
    runs = None
    if len(repeats) == 1:
        runs = [runner.load(one.cells[0]) if one.entry["error"] is None else None for one in found]
    equal = equal_ones(runner, variants, [one.cells for one in found])
    same = {label for group in equal if base in group["labels"] for label in group["labels"]}
    rows = set_by_rate(judge(entries, values, metrics, settings, runs), entries, same)
    firsts = {one.variant.label: next((c for c in one.cells if c.address not in runner.errors), None) for one in found}
    if repeats.kind == "windows":
        whole = {(v.label, name): x for v, one in zip(variants, found, strict=True) for name, x in one.whole.items()}
        finite = {key: value for key, value in whole.items() if not np.isnan(value)}
        for row in rows:
            row |= {"window_mean": row["value"], "value": finite.get((row["variant"], row["metric"]))}
            row["baseline_value"] = finite.get((base, row["metric"]))
            row["more_replicates"] = None  # a recorded trace cannot provide more
    errors = dict[str, Any](model_error=[], error_runs=None, baseline_bars=None)
    if intervals:
        errors = model_errors(runner, firsts, rows, (settings.warmup, settings.cooldown))
    return {
        "workload": shared_settings([v.settings for v in variants]),
        "variants": entries,
        "equal": equal,
        "missed": missed_text({one.variant.label: one.miss for one in found if one.entry["error"] is None}),
        "rows": rows,
        **errors,
        "values": values,
        "drill_down": _drill_downs(runner, found),
        **split_notes(
            [
                *warnings_of(entries),
                *run_warnings(runner, firsts, lengths=True),
                *_notes(entries, repeats),
                *(note for each in found for note in each.busy),
                *map(equal_text, equal),
                *([AS_CHEAP] if any(row["verdict"] == AT_THE_RATE for row in rows) else []),
                *error_words(errors["model_error"]),
            ]
        ),
    }


def whole_document(
    judged: dict[str, Any], repeats: Replicates, metrics: Sequence[Metric], settings: Settings
) -> dict[str, Any]:
    variants, rows = judged["variants"], judged["rows"]
    labels, count = [v["label"] for v in variants], len(repeats)
    compared = [row for row in rows if row["metric"] == settings.rank_by and row["variant"] != labels[0]]
    headline = [_headline(row, labels[0], judged["equal"]) for row in compared]
    order = ranking(variants, rows, METRICS[settings.rank_by])
    return {
        "schema": SCHEMA,
        "baseline": labels[0],
        "answer": _answer(order, compared, headline, rows, labels[0]),
        "settings": settings._asdict(),
        "replicates": {
            "kind": "blocks" if count == 1 else repeats.kind,
            "count": count,
            "changes": list(repeats.changes),
        },
        "metrics": [m.document() for m in metrics],
        "ranking": order,
        "headline": [*judged["missed"], *headline],
        **{name: part for name, part in judged.items() if name != "missed"},
        "values": {
            "variant": [label for label in labels for _ in range(count * len(metrics))],
            "replicate": [j for _ in labels for j in range(count) for _ in metrics],
            "metric": [m.name for _ in labels for _ in range(count) for m in metrics],
            "value": judged["values"].ravel().tolist(),
        },
    }


def _headline(row: Row, baseline: str, equal: Sequence[Equal]) -> str:
    """Return the headline sentence for a variant."""
    group = next((e for e in equal if {row["variant"], baseline} <= set(e["labels"])), None)
    return equal_text({**group, "labels": [row["variant"], baseline]}) if group else sentence(row, baseline)


def _answer(
    order: Mapping[str, Any], compared: Sequence[Row], headline: Sequence[str], rows: Sequence[Row], baseline: str
) -> str:
    """Return a sentence that names the policy ranked first, or says that none can be distinguished or ranked."""
    if order["order"] and baseline not in order["order"] and baseline in order["unstable"]:
        stable = ", ".join(order["order"])
        return f"The queue of the baseline, {baseline}, grows without bound, but the queue of {stable} does not."
    if not order["order"]:
        return f"No policy can be ranked: {'every queue grows without bound' if order['unstable'] else 'all failed'}."
    if len(compared) == 1:
        return f"{headline[0]}{_but(compared[0], rows)}."
    if any(row["verdict"] in TOO.values() for row in compared):
        return f"{several(headline)}."
    metric, said = metric_label(order["metric"]), dict(zip((row["variant"] for row in compared), headline, strict=True))
    ranked = [row for row in compared if row["variant"] in order["order"]]
    if ranked and not any(row["verdict"] in ("better", "worse") for row in ranked):
        verdicts = ", ".join(dict.fromkeys(row["verdict"] for row in ranked))
        return f"No policy can be distinguished from {baseline} by {metric}: {verdicts} according to the intervals."
    first = order["order"][0]
    if first not in said:
        better = [row["variant"] for row in ranked if row["verdict"] == "better"]
        nothing = "no policy is better by more than its interval"
        but = f"by paired changes {', '.join(better)} is better" if better else nothing
        return f"{first}, the baseline, ranks first by {metric}; {but}."
    return f"{first} ranks first by {metric}: {said[first]}."


def _but(row: Row, rows: Sequence[Row]) -> str:
    """Return the metrics in which the variant is better or worse, unlike in `row`, as the end of a sentence."""
    mine = [other for other in rows if other["variant"] == row["variant"] and other["verdict"] != row["verdict"]]
    found = grouped((other["verdict"], metric_label(other["metric"])) for other in mine)
    said = [f"{verdict} in {', '.join(found[verdict])}" for verdict in ("better", "worse") if verdict in found]
    return f", but {' and '.join(said)}" if said else ""


def _drill_downs(runner: Runner, found: Sequence[Values]) -> list[dict[str, Any]]:
    base, told = found[0].variant.label, []
    for label, cell in ((one.variant.label, one.cells[0]) for one in found[1:]):
        if cell.address not in runner.errors:
            what = drill_down(runner.folder(found[0].cells[0]), runner.folder(cell))
            text = divergence_text(what["divergence"], base, label)
            told.append({"variant": label, "baseline": base, "replicate": 0, **what, "divergence_text": text})
    return told


def _notes(variants: Sequence[Mapping[str, Any]], repeats: Replicates) -> list[str]:
    notes = failures([(v["label"], v["error"]) for v in variants if v["error"] is not None])
    notes += repeats.notes
    one_run = repeats.kind == "windows"
    found: dict[str, list[str]] = {}
    for v in variants:
        if v["unstable"]:
            so = "latencies depend on the trace's length, so they are not compared or ranked"
            often = "" if one_run else f" in {v['unstable']} of {len(repeats)} runs"
            said = f"unstable{often} (the queue was still growing when arrivals ended)"
            found.setdefault(f"{said}: {so if is_unstable(v) else 'near the limit'}", []).append(v["label"])
    notes += [Warn(f"{several(labels)}: {said}; try a lower --rate") for said, labels in found.items()]
    if len(repeats) == 1:
        said = "each variant ran once, so intervals come from successive parts of the run and ignore variation between"
        notes.append(f"{said} traces" if one_run else Warn(f"{said} traces; add --replicates 10"))
    elif len(repeats) < 6 and not one_run:
        said = f"{len(repeats)} replicates: a sign-flip test cannot reach p = 0.05 with fewer than 6"
        notes.append(Warn(f"{said}; add --replicates 6"))
    if repeats.kind == "windows" and len(repeats) > 1:
        notes.append(
            "values are for the whole recorded trace. Changes are means over successive windows of "
            f"{repeats.changes[0]['requests']:,} requests in one run"
        )
    if not any(v["oracle"] for v in variants):
        notes.append("no gap to an oracle is shown because none of the policies compared is an oracle")
    return notes
