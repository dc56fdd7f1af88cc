"""Page of a capacity question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servesim.experiments.capacity_answer import front_metrics, never_text, ordered
from servesim.experiments.capacity_error import price_of_row
from servesim.experiments.capacity_words import bracket_words, brackets, error_sentences
from servesim.experiments.goals import header
from servesim.experiments.metrics import metric_label
from servesim.experiments.ranking import pareto_front
from servesim.experiments.replicates import counted
from servesim.reports.best_run import best_run
from servesim.reports.experiment import (
    Experiment,
    Figures,
    amount,
    colours,
    page_of,
    pill,
)
from servesim.reports.figures.load import Dot, attainment, pareto
from servesim.reports.ink import SERIES
from servesim.reports.page import Block, Page, Section, Table
from servesim.reports.recommend_page import recommended
from servesim.reports.svg import Drawing
from servesim.reports.variants import absent
from servesim.reports.words import gpu_of, number


def page(folder: Path) -> Page:
    """Return the page: each deployment's capacity, its price, and the certainty of both."""
    experiment = Experiment.load(folder, "capacity")
    document = experiment.document
    settings = document["settings"]
    drawn = [drawing for draw in FIGURES.values() if (drawing := draw(experiment)) is not None]
    reasons = [
        f"{r['label'] or 'this'}: {never_text(r)}"
        for r in ordered(document["rows"])
        if r["verdict"] == "never" and r["best_attainment"] is not None
    ]
    never = [Block("list", "Never", reasons, wide=True)] if reasons else []
    sure = [*filter(None, [bracket_words(document)]), *error_sentences(document)]
    sure += [one["says_worth"] for one in document.get("worth", ())]
    found = document.get("recommendation")
    sure += (found or {}).get("sure", [])
    sections = [
        *(recommended(found) if found is not None else []),
        Section("Deployments", [Block("table", "", _table(document), wide=True, text=_how_to_read(document)), *never]),
        Section("How sure", [Block("list", "", sure, wide=True)] if sure else []),
        Section("Behind it", [Block("drawing", "", drawing) for drawing in drawn]),
        best_run(experiment),
    ]
    chips = [
        ("limits", header(settings["goals"])),
        ("replicates", counted(document["replicates"])),
    ]
    question = "Highest rate within the limits" if _by_rate(document) else "Cheapest deployment within the limits"
    return page_of(experiment, question, chips, _tiles(document), sections)


def _by_rate(document: Mapping[str, Any]) -> bool:
    return bool(document["question"] == "highest rate")


def _tiles(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return tiles on the cheapest deployment: what it carries, its price, and the latency closest to its limit."""
    ranked = [r for r in ordered(document["rows"]) if r["verdict"] == "carries"]
    if not ranked:
        return []
    best, limits = ranked[0], _limits(document)
    _, latency, _ = front_metrics([best], limits)
    value, _, unit = amount(best["values"][latency], "ms").partition(" ")
    size = f"{best['gpus']} × {gpu_of(best['gpu'])}"
    rate = {"name": "Highest rate", "value": number(best["rate"]), "unit": "req/s", "note": _between(best) or "carried"}
    gpus = {"name": "GPUs", "value": str(best["gpus"]), "unit": gpu_of(best["gpu"]),
            "note": f"{best['replicas']} replica{'s' * (best['replicas'] != 1)}"}  # fmt: skip
    return [
        rate if _by_rate(document) else gpus,
        {"name": "Price", "value": f"${number(best['usd_per_hour'])}", "unit": "an hour", "note": size},
        {"name": "Price of tokens", "value": amount(best["values"]["usd_per_million_tokens"], "$"), "unit": "per M",
         "note": _lead(ranked)},
        {"name": metric_label(latency), "value": value, "unit": unit,
         "note": _limit(document["settings"]["goals"], latency.removesuffix("_p99"))},
    ]  # fmt: skip


def _limit(goals: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the limit on a metric that is for about 99 % of requests, not of one class, in words, and the share that
    it is for unless that is 99 %."""
    limits = [(abs(goal["share"] - 0.99), goal["limits"][metric], goal["share"])
              for goal in goals if metric in goal["limits"] and not goal.get("of")]  # fmt: skip
    if not limits:
        return ""
    _, limit, share = min(limits)
    return f"limit {amount(limit, 'ms')}" + (f" for {100 * share:g} % of requests" if share != 0.99 else "")


def _lead(ranked: Sequence[Mapping[str, Any]]) -> str:
    """Return how much cheaper per request the first deployment is than the next, or how many cost the same."""
    if len(ranked) < 2:
        return "of all tokens"
    equal = sum(price_of_row(r) <= 1.005 * price_of_row(ranked[0]) for r in ranked[1:])
    if equal:
        return f"the same as {ranked[1]['label']}" if equal == 1 else f"the same as {equal} others"
    return f"{100 * (1 - price_of_row(ranked[0]) / price_of_row(ranked[1])):.0f} % less than {ranked[1]['label']}"


def _limits(document: Mapping[str, Any]) -> list[Mapping[str, float]]:
    return [goal["limits"] for goal in document["settings"]["goals"]]


def _between(row: Mapping[str, Any]) -> str:
    if row["rate_low"] is None and row["rate_high"] is None:
        return ""
    low, high = (number(row[key]) if row[key] is not None else "?" for key in ("rate_low", "rate_high"))
    return f"{low} to {high}"


def _table(document: Mapping[str, Any]) -> Table:
    by_rate = _by_rate(document)
    rows = []
    for r in ordered(document["rows"]):
        said = pill("cheapest", "up") if r["cheapest"] else pill(r["verdict"])
        values = r["values"] or {}
        of_gpus, of_rate = brackets(r)
        size = "–" if r["gpus"] is None else f"{r['gpus']} × {gpu_of(r['gpu'])}{of_gpus}"
        rate = "–" if r["rate"] is None else number(r["rate"]) + of_rate
        carried = (rate, _between(r) or "–") if by_rate else (size, amount(r["best_attainment"], "share"))
        rows.append(
            (
                r["label"],
                said,
                *carried,
                amount(r["usd_per_hour"], "$"),
                *(amount(values.get(name), unit) for name, unit in (
                    ("usd_per_million_tokens", "$"), ("output_throughput", ""), ("ttft_p99", "ms"), ("tpot_p99", "ms"),
                )),
            )
        )  # fmt: skip
    what = ("requests/s", "interval") if by_rate else ("GPUs", "within limits")
    columns = ("deployment", "", *what, "$ an hour", "$ per M tokens", "output tokens/s", "p99 TTFT", "p99 TPOT")
    return Table("Deployments", columns, rows, (False, False, *[True] * 7))


def _how_to_read(document: Mapping[str, Any]) -> str:
    s = document["settings"]
    windows = ""
    if "window_minutes" in s:
        windows = (
            f", and in every {s['window_minutes']:g}-minute window with at least {s['window_requests']:,} requests"
        )
    text = (
        f"A deployment sustains a rate if the limits above are met on average over all runs{windows}, and fewer than "
        "half of the runs are unstable. "
    )
    if _by_rate(document):
        return text + (
            f"The {100 * s['level']:g} % interval includes the range that the bisection did not resolve. The other "
            "columns apply to that rate."
        )
    return text + "The cheapest deployment has the lowest price per request."


def _attainment(document: Mapping[str, Any]) -> Drawing | None:
    by_rate = _by_rate(document)
    points: dict[str, list[tuple[float, float]]] = {}
    for p in document["points"]:
        if p["attainment"] is not None:
            points.setdefault(p["label"], []).append((p["rate"] if by_rate else p["replicas"], p["attainment"]))
    palette = _palette(document)
    unit = "requests/s" if by_rate else "replicas"
    shown = {label: points[label] for label in palette if label in points}
    more = f" Only the {len(shown)} best of {len(points)} deployments are shown." if len(shown) < len(points) else ""
    return (
        attainment(shown, palette, document["settings"]["attainment"], unit, more, absent(document, shown))
        if points
        else None
    )


def _palette(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the colors of the best deployments, best first, up to the number of colors."""
    return colours([r["label"] for r in ordered(document["rows"])[: len(SERIES)]])


def _front(document: Mapping[str, Any]) -> Drawing | None:
    palette = _palette(document)
    rows = []
    metrics = front_metrics(document["rows"], _limits(document))
    front = pareto_front([r for r in document["rows"] if r["verdict"] == "carries"], metrics)
    for r in document["rows"]:
        values: Mapping[str, Any] = r["values"] or {}
        found: list[Any] = [values.get(name) for name in metrics]
        if r["verdict"] == "carries" and None not in found:
            price, ms, flow = found
            rows.append(Dot(r["label"], palette.get(r["label"], "muted"), price, ms, flow, r["label"] in front))
    return pareto(rows, metrics[1], absent(document, [row.label for row in rows])) if len(rows) > 1 else None


FIGURES: Figures = {"attainment": lambda e: _attainment(e.document), "pareto": lambda e: _front(e.document)}
"""Functions that draw each figure of a capacity question."""
