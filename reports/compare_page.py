"""Page of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from servesim.experiments.compare_error import baseline_sentence, sentences
from servesim.experiments.metrics import metric_label
from servesim.experiments.replicates import counted
from servesim.reports.best_run import best_run
from servesim.reports.experiment import (
    BARE,
    Experiment,
    Figures,
    amount,
    change,
    interval,
    page_of,
    pill,
    setting_chips,
    with_unit,
)
from servesim.reports.figures.forest import forest
from servesim.reports.figures.overlay import distributions
from servesim.reports.ink import SERIES
from servesim.reports.page import Block, Page, Section, Table
from servesim.reports.svg import Drawing
from servesim.reports.words import time_ms

COLUMNS_AT_MOST = 6
WORST = 5


def page(folder: Path) -> Page:
    """Return the page: verdicts, intervals, distributions, and the outcomes of individual requests."""
    experiment = Experiment.load(folder, "comparison")
    document = experiment.document
    settings = document["settings"]
    overlaid = _distributions(experiment)
    sections = [
        Section("Verdicts", _verdicts(document)),
        Section("Distributions", [Block("drawing", "", overlaid)] if overlaid else []),
        Section("Every metric", [Block("table", "", _matrix(document), wide=True, text=_how_to_read(document))]),
        Section("What happened to individual requests", _drill_down(document)),
        best_run(experiment),
    ]
    chips = [
        ("baseline", document["baseline"]),
        *setting_chips(experiment),
        ("replicates", f"{counted(document['replicates'])}, paired"),
        ("intervals", f"{100 * settings['level']:g} %"),
        ("ranked by", metric_label(settings["rank_by"])),
    ]
    title = f"{len(document['variants'])} policies compared"
    return page_of(experiment, title, chips, [], sections)


def _rows(document: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["variant"], row["metric"]): row for row in document["rows"]}


def _verdicts(document: Mapping[str, Any]) -> list[Block]:
    """Return the ranking, best first, and the figure of changes."""
    rank_by, rows = document["settings"]["rank_by"], _rows(document)
    ranking = document["ranking"]
    order = [*ranking["order"], *ranking["unstable"], *ranking["failed"]]
    cells: list[tuple[Any, ...]] = []
    for place, label in enumerate(order, 1):
        row = rows.get((label, rank_by))
        if row is None:
            cells.append(("–", label, pill("failed"), "–", "–", "–", "–"))
            continue
        gap = change(row["gap_to_oracle"], row["scale"], row["unit"])
        ranked = label in ranking["order"]
        cells.append(
            (str(place) if ranked else "–", label, pill(row["verdict"]), amount(row["value"], row["unit"]),
             change(row["change"], row["scale"], row["unit"]), interval(row), gap)
        )  # fmt: skip
    columns = ("", "policy", "verdict", metric_label(rank_by), "change", "interval", "gap to oracle")
    table = Table("Ranking", columns, cells, (True, False, False, True, True, True, True))
    if all(cell[-1] == "–" for cell in cells):
        table = Table("Ranking", columns[:-1], [cell[:-1] for cell in cells], table.numeric[:-1])
    drawn = forest(document)
    blocks = [Block("table", "Ranking", table, wide=True)]
    words = [*document["headline"], *sentences(document.get("model_error", ()), document["baseline"])]
    words += filter(None, [baseline_sentence(document.get("baseline_bars"), document["baseline"])])
    blocks += [Block("list", "In words", words, wide=True)] if words else []
    return blocks + ([Block("drawing", "", drawn)] if drawn else [])


def _distributions(experiment: Experiment) -> Drawing | None:
    """Draw the latencies of all replicates together; with many variants, draw the best ones and the baseline."""
    document = experiment.document
    order = [document["baseline"], *(label for label in document["ranking"]["order"] if label != document["baseline"])]
    more = (
        (f" Only the {len(SERIES) - 1} best of {len(order)} and the baseline are shown.")
        if len(order) > len(SERIES)
        else ""
    )
    return distributions(experiment, order[: len(SERIES)], more)


FIGURES: Figures = {"changes": lambda e: forest(e.document), "latency_cdf": _distributions}
"""Functions that draw each figure of a comparison."""


def _matrix(document: Mapping[str, Any]) -> Table:
    """Return the values and changes of every metric; whichever of variants and metrics has fewer entries becomes the
    columns."""
    rows, metrics = _rows(document), document["metrics"]
    labels = [v["label"] for v in document["variants"]]
    names = [with_unit(m) for m in metrics]

    def cell(label: str, metric: str) -> Markup:
        row = rows.get((label, metric))
        if row is None:
            return Markup("–")
        value = Markup("{}").format(amount(row["value"], row["unit"] if row["unit"] in BARE else ""))
        if row["verdict"] == "baseline":
            return value
        tone = {"better": "up", "worse": "down", "too fast": "down", "too slow": "down"}.get(row["verdict"], "even")
        said, ends = change(row["change"], row["scale"], row["unit"]), interval(row)
        within = "" if ends == "–" else f"({ends})"
        return Markup('{}<small><span class="{}">{}</span> {}</small>').format(value, tone, said, within)

    if len(labels) <= COLUMNS_AT_MOST:
        body = [(name, *(cell(label, m["name"]) for label in labels)) for name, m in zip(names, metrics, strict=True)]
        return Table("Every metric", ("", *labels), body, kind="matrix")
    body = [(label, *(cell(label, m["name"]) for m in metrics)) for label in labels]
    return Table("Every metric", ("", *names), body, kind="matrix")


def _how_to_read(document: Mapping[str, Any]) -> str:
    s = document["settings"]
    return (
        f"The table shows means over replicates. Below each mean is the change from {document['baseline']} with its "
        f"{100 * s['level']:g} % interval. Cells are colored where the verdict is better or worse. The first "
        f"{100 * s['warmup']:g} % and the last {100 * s['cooldown']:g} % of the arrivals are excluded."
    )


def _drill_down(document: Mapping[str, Any]) -> list[Block]:
    blocks = []
    for drill in document["drill_down"]:
        counts = f"{drill['compared']:,} requests compared: {drill['worse']:,} slower, {drill['better']:,} faster"
        if drill["not_completed"]:
            counts += f", {drill['not_completed']:,} not completed by one or both"
        causes = ", ".join(f"{cause} {n:,}" for cause, n in drill["causes"].items())
        lines = [counts + (f". Slower because of: {causes}." if causes else ".")]
        if drill["divergence_text"]:
            lines.append(f"First difference {drill['divergence_text']}.")
        table = _worst(drill) if drill["worst"] else lines
        kind, above = ("table", lines) if drill["worst"] else ("list", [])
        blocks.append(Block(kind, drill["variant"], table, wide=True, lines=above))
    return blocks


def _worst(drill: Mapping[str, Any]) -> Table:
    rows = [
        (
            f"{w['row']:,}",
            f"{w['prompt_len']:,}",
            f"{w['output_len']:,}",
            *(time_ms(ms) for ms in w["e2el_ms"]),
            *(f"{w['more_ms'][part]:+,.0f} ms".replace("-", "−") for part in ("queue", "prefill", "decode")),
            w["cause"],
        )
        for w in drill["worst"][:WORST]
    ]
    columns = ("request", "prompt", "output", "E2E, baseline", "E2E, variant", "queue", "prefill", "decode", "cause")
    return Table(f"Slowed most by {drill['variant']}", columns, rows, (False, *[True] * 7, False))
