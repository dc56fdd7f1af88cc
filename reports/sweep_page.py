"""Page of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from servesim.experiments.axes import label_of
from servesim.experiments.front_error import entries_of, front_word
from servesim.experiments.knee import knee
from servesim.experiments.metrics import metric_label
from servesim.experiments.ranking import rate_of
from servesim.experiments.replicates import counted
from servesim.experiments.sweep_words import sure
from servesim.reports.best_run import best_run
from servesim.reports.experiment import (
    BARE,
    Experiment,
    Figures,
    amount,
    colours,
    limits_of,
    page_of,
    pill,
    setting_chips,
    with_unit,
)
from servesim.reports.figures.load import Curve, Dot, against_load, pareto
from servesim.reports.figures.overlay import distributions
from servesim.reports.figures.strip import ROWS_AT_MOST, strip
from servesim.reports.ink import SERIES
from servesim.reports.page import Block, Page, Section, Table
from servesim.reports.svg import Drawing
from servesim.reports.variants import Legend, absent, group_of, states

PANELS = ("ttft_p99", "tpot_p99", "e2el_p99", "slo_attainment", "ttft_mean", "tpot_mean", "e2el_mean")
PANELS_AT_MOST = 3
DECISIVE = ("slo_attainment", "request_goodput")
"""Metrics that come first in the table, since they determine the best combination."""


def page(folder: Path) -> Page:
    """Return the page: every combination, the best one, latency against load, and the Pareto front."""
    experiment = Experiment.load(folder, "sweep")
    document = experiment.document
    curves = _curves(document)
    sections = [
        Section("Under load" if curves else "At a glance", _drawings(experiment, curves)),
        Section("Every combination", [Block("table", "", _table(document), wide=True, text=_how_to_read(document))]),
        *([Section("How sure", [Block("list", "", said, wide=True)])] if (said := _sure(document)) else []),
        best_run(experiment),
    ]
    chips = [(axis, ", ".join(map(str, document["axes"][axis]))) for axis in _axes(document)]
    chips += [*setting_chips(experiment), ("replicates", counted(document["replicates"]))]
    tiles = _tiles(document, document["best"], curves)
    return page_of(experiment, f"{len(document['variants'])} combinations", chips, tiles, sections)


def _metrics(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {m["name"]: m for m in document["metrics"]}


def _groups(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the variants that did not fail, grouped by everything but their rate, each group ordered by rate."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for variant in document["variants"]:
        if variant["status"] == "ok":
            groups.setdefault(group_of(variant), []).append(variant)
    return {label: sorted(found, key=lambda v: rate_of(v) or 0.0) for label, found in groups.items()}


def _stable(variant: Mapping[str, Any]) -> bool:
    return bool(variant["stability"] != "unstable")


def _curves(document: Mapping[str, Any]) -> list[Curve]:
    """Return a curve for each combination of the other axes if rate is an axis; if there are many, return those that
    are stable at the most rates."""
    if len(document["axes"].get("rate", [])) < 3:
        return []
    groups = {label: found for label, found in _groups(document).items() if len(found) > 2}
    last = {label: sum(_stable(v) for v in found) for label, found in groups.items()}
    chosen = sorted(groups, key=lambda label: -last[label])[: len(SERIES)]
    palette = colours([label for label in groups if label in chosen])
    names = [m["name"] for m in document["metrics"]]
    return [
        Curve(
            label,
            palette[label],
            [rate_of(v) or 0.0 for v in groups[label]],
            {name: [v["values"].get(name) for v in groups[label]] for name in names},
            [_stable(v) for v in groups[label]],
            max((rate_of(v) or 0.0 for v in groups[label] if v["stability"] == "stable"), default=None),
        )
        for label in palette
    ]


def _strip(document: Mapping[str, Any]) -> Drawing | None:
    """Draw every combination that ran as dots."""
    rates, panels = [str(rate) for rate in document["axes"].get("rate", [])], _panels(document)
    rows = [
        {
            "label": label,
            "points": [(_series(v), _stable(v), v["values"]) for v in found],
        }
        for label, found in _groups(document).items()
    ]
    series = [f"{rate} requests/s" for rate in rates] or [""]
    left = _left(document, [str(row["label"]) for row in rows[:ROWS_AT_MOST]])
    return strip(rows, series, panels, left) if len(rows) > 1 and panels else None


def _series(variant: Mapping[str, Any]) -> str:
    rate = variant["axes"].get("rate")
    return f"{rate} requests/s" if rate is not None else ""


def _panels(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    metrics = _metrics(document)
    return [metrics[name] for name in PANELS if name in metrics][:PANELS_AT_MOST]


def _load(document: Mapping[str, Any]) -> Drawing | None:
    curves, panels = _curves(document), _panels(document)
    left = _left(document, [curve.label for curve in curves])
    return against_load(curves, panels, limits_of(document), left) if curves and panels else None


def _left(document: Mapping[str, Any], shown: Sequence[str]) -> Legend:
    """Return entries that name the combinations, whatever their rate, that are not shown, and the variants that
    failed."""
    known = {
        label: "not shown" if any(_stable(v) for v in found) else "unstable"
        for label, found in _groups(document).items()
    }
    failed = {label: reason for label, reason in states(document).items() if reason == "failed"}
    return absent(document, shown, known | failed)


def _front(document: Mapping[str, Any]) -> Drawing | None:
    rows = _pareto(document)
    return pareto(rows, left=absent(document, [row.label for row in rows])) if len(rows) > 1 else None


def _distributions(experiment: Experiment) -> Drawing | None:
    """Draw the latencies of the best stable combinations."""
    document = experiment.document
    goal = _metrics(document)[document["settings"]["best_by"][0]]
    sign = 1 if goal["better"] == "lower" else -1
    usable = [v for v in document["variants"] if v["status"] == "ok" and _stable(v)]
    ranked = sorted(
        (v for v in usable if v["values"][goal["name"]] is not None), key=lambda v: sign * v["values"][goal["name"]]
    )
    shown = [v["label"] for v in ranked[: len(SERIES)]]
    more = (
        (f" Only the {len(shown)} best of {len(usable)} stable combinations are shown.")
        if len(shown) < len(usable)
        else ""
    )
    return distributions(experiment, shown, more)


FIGURES: Figures = {
    "latency_load": lambda e: _load(e.document),
    "combinations": lambda e: _strip(e.document),
    "latency_cdf": _distributions,
    "pareto": lambda e: _front(e.document),
}
"""Functions that draw each figure of a sweep."""


def _drawings(experiment: Experiment, curves: list[Curve]) -> list[Block]:
    document = experiment.document
    names = [name for name in FIGURES if name != "combinations" or len(curves) < len(_groups(document))]
    drawn = {name: drawing for name in names if (drawing := FIGURES[name](experiment)) is not None}
    blocks = [Block("drawing", "", drawing) for name, drawing in drawn.items() if name != "pareto"]
    bends = _knees(curves, _metrics(document)) if curves else None
    if bends:
        blocks.append(Block("table", "Knees", bends))
    return blocks + ([Block("drawing", "", drawn["pareto"])] if "pareto" in drawn else [])


def _knees(curves: list[Curve], metrics: Mapping[str, Any]) -> Table | None:
    names = [name for name in ("ttft_p99", "tpot_p99", "e2el_p99") if name in metrics]
    rows = []
    for curve in curves:
        bends = [knee(curve.rates, curve.values[name], curve.stable) for name in names]
        cells = ["–" if bend is None else f"{bend:g}" for bend in bends]
        rows.append((curve.label, *cells, "–" if curve.last_stable is None else f"{curve.last_stable:g}"))
    columns = ("requests/s", *(metric_label(name) for name in names), "last stable")
    return Table("Knees", columns, rows) if names else None


def _pareto(document: Mapping[str, Any]) -> list[Dot]:
    needed = ("usd_per_million_tokens", "e2el_p99", "output_throughput")
    rows, entries = [], entries_of(document)
    palette = colours([v["label"] for v in document["variants"] if v["pareto"]])
    for v in document["variants"]:
        price, ms, flow = (v["values"].get(name) if v["status"] == "ok" else None for name in needed)
        if price is not None and ms is not None and flow is not None and _stable(v):
            entry = entries.get(v["label"], {})
            bars = None if entry.get("low") is None else (entry["low"], entry["high"])
            doubtful = entry.get("told") is False
            rows.append(Dot(v["label"], palette.get(v["label"], "slate"), price, ms, flow, v["pareto"], bars, doubtful))
    return rows


def _tiles(document: Mapping[str, Any], best: Mapping[str, Any] | None, curves: list[Curve]) -> list[dict[str, Any]]:
    if best is None:
        return []
    metrics = _metrics(document)
    variant = next(v for v in document["variants"] if v["label"] == best["label"])
    wanted = [best["metric"], "ttft_p99", "tpot_p99", "output_throughput", "usd_per_million_tokens", "slo_attainment"]
    tiles = []
    for name in dict.fromkeys(n for n in wanted if n in metrics):
        value, _, unit = amount(variant["values"].get(name), metrics[name]["unit"]).partition(" ")
        said = f"best: {variant['label']}" if name == best["metric"] else "of the best"
        tiles.append({"name": metric_label(name), "value": value, "unit": unit, "note": said})
    return tiles[:4]


def _table(document: Mapping[str, Any]) -> Table:
    repeats, axes = document["replicates"]["count"], _axes(document)
    metrics = sorted(document["metrics"], key=lambda metric: metric["name"] not in DECISIVE)
    best = {entry["label"] for entry in document["best_by_rate"] or [document["best"]] if entry}
    entries = entries_of(document)
    rows = []
    for v in document["variants"]:
        if v["status"] != "ok":
            state = pill("failed")
        elif v["unstable"] or not _stable(v):
            state = pill(f"{v['unstable']} of {repeats} unstable" if _stable(v) else "unstable", None)
        elif v["label"] in best:
            state = pill("best", "up")
        elif v["equal_to"] in best:
            state = pill(f"best, = {v['equal_to']}", "up")
        elif v["equal_to"] is not None:
            state = pill(f"= {v['equal_to']}", "even")
        else:
            word = front_word(entries.get(v["label"]), v["pareto"])
            state = pill(word, "open") if word else Markup()
        cells = [_cell(v, m) for m in metrics]
        rows.append((*(str(v["axes"].get(axis, "")) for axis in axes), state, *cells))
    columns = (*(axis.replace("_", " ") for axis in axes), "", *(with_unit(m) for m in metrics))
    numeric = (*[False] * (len(axes) + 1), *[True] * len(metrics))
    return Table("Every combination", columns, rows, numeric, kind="matrix")


def _cell(variant: Mapping[str, Any], metric: Mapping[str, Any]) -> Markup | str:
    """Return a value and, below a mean latency, the range that would contain it on 80 % of measured servers."""
    unit = metric["unit"] if metric["unit"] in BARE else ""
    said = amount((variant["values"] or {}).get(metric["name"]), unit)
    bars = (variant.get("bars") or {}).get(metric["name"])
    if bars is None:
        return said
    return Markup("{}<small>{} to {}</small>").format(said, *(amount(bars[end], unit) for end in ("low", "high")))


def _sure(document: Mapping[str, Any]) -> list[str]:
    """Return sentences on how certain the best combination and the fronts are, given the model's error."""
    said = sure(document)
    bars = {v["bars"]["says"]: v["label"] for v in reversed(document["variants"]) if v.get("bars")}
    return said + [f"error bars for means ({label or 'the run'}): {says}" for says, label in reversed(bars.items())]


def _axes(document: Mapping[str, Any]) -> list[str]:
    """Return the axes in label order."""
    first = document["variants"][0]
    return sorted(first["axes"], key=lambda axis: first["label"].find(label_of(axis, first["axes"][axis])))


def _how_to_read(document: Mapping[str, Any]) -> str:
    s = document["settings"]
    within = "Best and Pareto compare combinations at the same rate. " if "rate" in document["axes"] else ""
    return (
        f"Means over replicates. {within}The first {100 * s['warmup']:g} % and the last {100 * s['cooldown']:g} % "
        "of the arrivals are excluded. Pareto: no stable combination is at least as good in price, p99 "
        "end-to-end latency and output throughput, and better in one. A question mark means that the model's error "
        "may change that. The range below a mean latency would contain it on 80 % of measured servers."
    )
