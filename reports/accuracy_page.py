"""The page of `servesim accuracy`: how true latencies and decisions are, by what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from servesim.cli.summary import percent
from servesim.experiments.accuracy.files import load, ratios
from servesim.reports.page import Alert, Block, Page, Section, Table
from servesim.reports.svg import INK, SERIES, Drawing, wide

METRICS = (("tpot", "TPOT"), ("ttft", "TTFT"), ("e2e", "E2E"))
MOST_ROWS = 14
"""Rows of the figure: sets with the most cells."""
RULE = "The naive rule takes the fewest GPUs; for choices it is told which measured concurrencies keep the limit."
KINDS = {
    "sizes": "pairs of sizes, at equal clients per GPU",
    "engines": "pairs of engines",
    "settings": "pairs of commands that differ in one thing",
}
MISSES = 20
"""Wrongly ordered pairs that are listed, those that differ most as measured first."""
WORDS = {
    "mape": "MAPE",
    "median": "median error",
    "bias": "bias",
    "within_10": "within 10 %",
    "within_25": "within 25 %",
    "e2e": "E2E",
    "intervals": "intervals",
}


def page(folder: Path) -> Page:
    """Return the page of the score in a folder."""
    cells, document = load(folder)
    rows = document["scores"]
    whole = rows[0]
    sections = [
        Section("Latencies", _latencies(cells, document), "latencies"),
        Section("Decisions", _decisions(document["decisions"]), "decisions"),
        Section("What was scored", _scored(document), "scored"),
        Section("Definitions", [Block("pairs", "", _definitions(document), wide=True)], "definitions"),
    ]
    files = ", ".join(file["name"] for file in document["files"])
    chips = [("date", document["date"]), ("version", document["servesim"]), ("cells of", files)]
    if document["without"]:
        chips.append(("without those of", ", ".join(file["name"] for file in document["without"])))
    subtitle = (
        f"{document['cells']:,} measured cells, {document['kept']:,} after the screen, {whole['answered']:,} of them "
        f"answered, on {whole['deployments']:,} servers"
    )
    values = {"tiles": _tiles(document), "sections": sections}
    return Page("experiment", "accuracy", "How true it is", subtitle, chips, _alerts(whole), values)


def _alerts(whole: Mapping[str, Any]) -> list[Alert]:
    if not whole["answered"]:
        return [Alert("Nothing was answered.", "The reasons are listed below.")]
    missing = whole["cells"] - whole["answered"]
    if not missing:
        return []
    text = f"{missing:,} of {whole['cells']:,} cells are in no figure of this page; the reasons are listed below."
    return [Alert("Not all cells could be answered.", text, "warn")]


def _tiles(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole, sizes, choices = document["scores"][0], document["decisions"]["sizes"], document["decisions"]["choices"]
    tiles = []
    for metric, words in METRICS[:2]:
        found = whole["over_cells"][metric]["median"] if whole["answered"] else {"value": None}
        tiles.append(_tile(f"{words}, median error", found["value"], _interval(found)))
    apart = sizes["apart"]
    tiles.append(_tile("Sizes ordered rightly", apart["right"]["value"], f"of {apart['pairs']:,} pairs over 5 % apart"))
    tiles.append(_tile("Right choice under a limit", choices["near"]["value"], f"of {choices['choices']:,} choices"))
    return tiles


def _tile(name: str, share: float | None, note: str) -> dict[str, Any]:
    value = "–" if share is None else f"{100 * share:.1f}"
    return {"name": name, "value": value, "unit": "" if share is None else "%", "note": note}


def _interval(found: Mapping[str, Any]) -> str:
    if found.get("low") is None:
        return "no interval"
    return f"{100 * found['low']:.1f} to {100 * found['high']:.1f} % (95 % interval)"


def _latencies(cells: Sequence[Mapping[str, str]], document: Mapping[str, Any]) -> list[Block]:
    rows = document["scores"]
    blocks = [Block("table", "Over all cells, with and without the screen", _whole(document), wide=True)]
    drawing = _drawing(cells)
    if drawing is not None:
        blocks.append(Block("drawing", "", drawing))
    for dimension in dict.fromkeys(row["by"] for row in rows if row["by"] != "all"):
        parts = [row for row in rows if row["by"] == dimension]
        blocks.append(Block("table", f"By {dimension}, in %", _parts(dimension, parts), wide=True))
    return blocks


def _whole(document: Mapping[str, Any]) -> Table:
    """Return every figure of all cells: over cells and over deployments, and without the screen."""
    lines = []
    for words, row, over in (
        ("cells", document["scores"][0], "over_cells"),
        ("deployments, each alike", document["scores"][0], "over_deployments"),
        ("cells, without the screen", document["unscreened"], "over_cells"),
    ):
        if row["answered"]:
            for metric, name in METRICS:
                figures = row[over][metric]
                texts = [_with_interval(figures[key], key == "bias") for key in FIGURES]
                lines.append((f"{name}, {words}", f"{row['answered']:,}", *texts))
    return Table("Over all", ("", "answered", *(WORDS[key] for key in FIGURES)), lines)


FIGURES = ("mape", "median", "bias", "within_10", "within_25")


def _with_interval(found: Mapping[str, float | None], signed: bool) -> str:
    value, low, high = found["value"], found["low"], found["high"]
    if value is None:
        return "–"
    form = "+.1f" if signed else ".1f"
    if low is None or high is None:
        return f"{100 * value:{form}} %"
    return f"{100 * value:{form}} % [{100 * low:{form}}, {100 * high:{form}}]"


def _parts(dimension: str, parts: Sequence[Mapping[str, Any]]) -> Table:
    columns = [_head(dimension), _head("answered"), _head("servers")]
    for _, name in METRICS:
        columns += [_head("MAPE", name), _head("median"), _head("bias"), _head("≤10, ≤25")]
    columns += [_head("MAPE", "TPOT, servers")]

    def line(row: Mapping[str, Any]) -> tuple[str, ...]:
        name = _short(row["what"])
        counts = (name, f"{row['answered']:,} of {row['cells']:,}", f"{row['deployments']:,}")
        if not row["answered"]:
            return (*counts, *["–"] * (len(columns) - len(counts)))
        texts = []
        for metric, _ in METRICS:
            figures = row["over_cells"][metric]
            texts += [_plain(figures[key], key) for key in ("mape", "median", "bias")]
            texts.append(", ".join(_plain(figures[key], key) for key in ("within_10", "within_25")))
        return (*counts, *texts, _plain(row["over_deployments"]["tpot"]["mape"], "mape"))

    return Table(f"By {dimension}", tuple(columns), [line(row) for row in parts], kind="dense")


def _head(name: str, above: str = "") -> Markup:
    return Markup("{}<br>{}").format(above, name)


def _short(what: str) -> str:
    """Return names of models without those of their publishers."""
    return " ".join(word.rpartition("/")[2] for word in what.split(" "))


def _plain(found: Mapping[str, float | None], key: str) -> str:
    """Return a figure in percent, with a sign where it has one."""
    if found["value"] is None:
        return "–"
    digits = {"bias": "+.1f", "within_10": ".0f", "within_25": ".0f"}.get(key, ".1f")
    return f"{100 * found['value']:{digits}}"


def _drawing(cells: Sequence[Mapping[str, str]]) -> Drawing | None:
    """Draw each cell's ratio of TPOT and of TTFT, a row for each engine, GPU and model."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for cell, tpot, ttft in ratios(cells):
        model = cell["model"].rpartition("/")[2]
        groups.setdefault(f"{cell['engine']}, {cell['gpu'].removesuffix('_sxm')}, {model}", []).append((tpot, ttft))
    if not groups:
        return None
    shown = sorted(sorted(groups), key=lambda name: -len(groups[name]))[:MOST_ROWS]

    def paint(figure: Any, narrow: bool) -> None:
        panels = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
        for i, (axes, words) in enumerate(zip(panels, ("TPOT", "TTFT"), strict=True)):
            axes.axvspan(1 / 1.1, 1.1, color=INK["rule"], alpha=0.6, linewidth=0)
            axes.axvline(1.0, color=INK["muted"], lw=1.0)
            for y, name in enumerate(shown):
                values = np.clip([pair[i] for pair in groups[name]], 0.1, 10.0)
                spread = np.linspace(-0.16, 0.26, len(values)) if len(values) > 1 else np.zeros(1)
                axes.scatter(values, y + spread, s=11, color=INK[SERIES[i]], alpha=0.6, linewidths=0)
                place = axes.get_yaxis_transform()
                if narrow or i == 0:
                    axes.text(0, y - 0.36, name, transform=place, fontsize=10, va="center")
            axes.set_xscale("log")
            axes.set_xlim(0.09, 11)
            axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "1", "2", "4", "10"])
            axes.set_xticks([], minor=True)
            axes.set_ylim(len(shown) - 0.5, -0.7)
            axes.set_yticks([])
            axes.set_title(words)
            axes.set_xlabel("simulated over measured")
            axes.grid(axis="x")
        high = figure.get_figheight() * 72
        figure.subplots_adjust(left=0.01, right=0.99, top=1 - 34 / high, bottom=48 / high, wspace=0.05, hspace=0.14)

    alt = "; ".join(
        f"{name}: {len(groups[name])} cells, median TPOT {np.median([t for t, _ in groups[name]]):.2f} and TTFT "
        f"{np.median([t for _, t in groups[name]]):.2f} times the measured"
        for name in shown
    )
    caption = "Each dot is a cell; the band is 10 % either way. Ratios beyond 0.1 and 10 are drawn at the edge."
    if len(groups) > len(shown):
        caption += f" The {len(shown)} sets with most cells of {len(groups)} are drawn."
    height = 92 + 38 * len(shown)
    return wide("ratios", "Simulated over measured", alt + ".", paint, (height, 2 * height), caption)


def _decisions(found: Mapping[str, Any]) -> list[Block]:
    lines: list[tuple[str, ...]] = []
    for kind, words in KINDS.items():
        part = found[kind]
        if not part["pairs"]:
            continue
        apart = part["apart"]
        lines.append((words, f"{part['pairs']:,}", _with_interval(part["right"], False), *_beside(part)))
        lines.append(
            (f"{kind} over 5 % apart", f"{apart['pairs']:,}", _with_interval(apart["right"], False), *_beside(apart))
        )
        lines.append(
            (
                f"{kind} right, or within 10 % of the better",
                f"{part['pairs']:,}",
                _with_interval(part["near"], False),
                "–",
                "–",
            )
        )
    choices = found["choices"]
    ceiling, naive = choices["ceiling"] or {}, choices["naive"]
    for name, words in (
        ("near", "choices: limit kept, within 10 % of the best"),
        ("far", "choices: limit kept, with less output"),
        ("broken", "choices: limit broken by over 5 %"),
        ("declined", "choices: none made"),
    ):
        beside = [percent(part.get(name, 0.0)) if part else "–" for part in (naive, ceiling)]
        lines.append((words, f"{choices['choices']:,}", _with_interval(choices[name], False), *beside))
    columns = ("decision", "n", "simulated", "naive rule", "ceiling by repeat noise")
    blocks = [Block("table", "", Table("Decisions", columns, lines), wide=True, text=RULE)]
    misses = [miss for kind in KINDS for miss in found[kind]["misses"]]
    misses.sort(key=lambda miss: -abs(np.log1p(miss["measured"])))
    if misses:
        cells = [
            (m["about"], m["first"], m["second"], f"{100 * m['measured']:+.0f} %", f"{100 * m['simulated']:+.0f} %")
            for m in misses[:MISSES]
        ]
        columns = ("model, GPU, lengths", "first", "second", "measured", "simulated")
        table = Table("Wrongly ordered", columns, cells, (False, False, False, True, True))
        text = f"Output per GPU of the first over the second. {len(misses):,} in all, those furthest apart first."
        blocks.append(Block("table", "Pairs ordered wrongly", table, wide=True, text=text))
    return blocks


def _beside(part: Mapping[str, Any]) -> tuple[str, str]:
    naive, ceiling = ("–" if part[key] is None else percent(part[key]) for key in ("naive", "ceiling"))
    return naive, ceiling


def _scored(document: Mapping[str, Any]) -> list[Block]:
    rules = [(one["rule"], f"{one['cells']:,}", one["says"]) for one in document["screen"]]
    screen = Table("Screen", ("rule", "cells", "what it leaves out"), rules, (False, True, False))
    reasons = [(one["reason"], f"{one['cells']:,}") for one in document["not_answered"]]
    blocks = [Block("table", "The screen: contradictory truth", screen, wide=True)]
    if reasons:
        blocks.append(Block("table", "Not answered", Table("Not answered", ("reason", "cells"), reasons), wide=True))
    noise = [
        (
            words,
            f"{one['repeats']:,}",
            percent(one["median"]),
            percent(one["mean"]),
            _range(one["mape_of_a_perfect_model"]),
        )
        for metric, words in METRICS[:2]
        if (one := document["noise"][metric])["repeats"]
    ]
    if noise:
        columns = ("", "repeats", "median difference", "mean difference", "MAPE of a perfect model")
        blocks.append(Block("table", "Noise of measurements", Table("Noise", columns, noise), wide=True))
    return blocks


def _range(found: Sequence[float]) -> str:
    return f"{100 * found[0]:.1f} to {100 * found[1]:.1f} %"


def _definitions(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(WORDS.get(name, name), text) for name, text in document["definitions"].items()]
