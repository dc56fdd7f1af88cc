"""Page of `servesim accuracy`: how accurate latencies and decisions are, compared with measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from servesim.experiments.accuracy.files import load
from servesim.metrics.words import percent
from servesim.reports.figures.ratios import ratio_strips
from servesim.reports.page import Alert, Block, Page, Section, Table

METRICS = (("tpot", "TPOT"), ("ttft", "TTFT"), ("e2e", "E2E"))
RULE = (
    "The naive rule picks the fewest GPUs (or bits per weight). For choices, it also uses the measured concurrencies "
    "that meet the limit."
)
KINDS = {
    "sizes": "pairs of sizes, with equal clients per GPU",
    "engines": "pairs of engines",
    "settings": "pairs of commands that differ in one setting",
}
MISSES = 20
"""Maximum number of misordered pairs listed, those with the largest measured difference first."""
WORDS = {
    "mape": "MAPE",
    "median": "median factor",
    "bias": "bias",
    "within_10": "within 10 %",
    "within_25": "within 25 %",
    "e2e": "E2E",
    "intervals": "intervals",
}


def page(folder: Path) -> Page:
    """Return the page for the score in a folder."""
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
        f"{document['cells']:,} measured cells, {document['kept']:,} after screening, {whole['answered']:,} of "
        f"them answered, on {whole['deployments']:,} servers"
    )
    sections = [section for section in sections if section.blocks]
    values = {"answer": answer(whole), "tiles": _tiles(document), "sections": sections}
    return Page("experiment", "accuracy", "How accurate it is", subtitle, chips, _alerts(whole), values)


def answer(whole: Mapping[str, Any]) -> str:
    """Return a sentence with the latency errors of the answered cells."""
    if not whole["answered"]:
        return ""
    errors = [f"{name} is {percent(whole['over_cells'][metric]['mape']['value'])} off" for metric, name in METRICS]
    share = f"{whole['answered']:,} of {whole['cells']:,} cells are answered"
    return f"{share}; on average, {', '.join(errors[:-1])} and {errors[-1]}."


def _alerts(whole: Mapping[str, Any]) -> list[Alert]:
    if not whole["answered"]:
        return [Alert("Nothing was answered.", "The reasons are listed below.")]
    missing = whole["cells"] - whole["answered"]
    if not missing:
        return []
    text = (
        f"{missing:,} of {whole['cells']:,} cells are not included in any figure on this page; the reasons are listed "
        "below."
    )
    return [Alert("Not all cells could be answered.", text, "warn")]


def _tiles(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    whole, decisions = document["scores"][0], document["decisions"]
    tiles = []
    for metric, words in METRICS[:2]:
        found = whole["over_cells"][metric]["median"] if whole["answered"] else {"value": None}
        tiles.append(_tile(f"{words}, median error", found["value"], _interval(found)))
    kind = max(("sizes", "settings"), key=lambda kind: decisions[kind]["pairs"])
    apart, choices = decisions[kind]["apart"], decisions["choices"]
    words = "Sizes" if kind == "sizes" else "Commands"
    tiles.append(
        _tile(
            f"{words} ordered rightly",
            apart["right"]["value"],
            (f"of {apart['pairs']:,} pairs that differ by more than 5 %"),
        )
    )
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
    blocks = [Block("table", "All cells, with and without screening", _whole(document), wide=True)]
    drawing = ratio_strips(cells)
    if drawing is not None:
        blocks.append(Block("drawing", "", drawing))
    for dimension in dict.fromkeys(row["by"] for row in rows if row["by"] != "all"):
        parts = [row for row in rows if row["by"] == dimension]
        blocks.append(Block("table", f"By {dimension}, in %", _parts(dimension, parts), wide=True))
    return blocks


def _whole(document: Mapping[str, Any]) -> Table:
    """Return every figure over all cells: averaged over cells and over deployments, and without screening."""
    lines = []
    for words, row, over in (
        ("cells", document["scores"][0], "over_cells"),
        ("deployments, each alike", document["scores"][0], "over_deployments"),
        ("cells, without screening", document["unscreened"], "over_cells"),
    ):
        if row["answered"]:
            for metric, name in METRICS:
                figures = row[over][metric]
                texts = [_with_interval(figures[key], key == "bias", key == "median") for key in FIGURES]
                lines.append((f"{name}, {words}", f"{row['answered']:,}", *texts))
    return Table("Over all", ("", "answered", *(WORDS[key] for key in FIGURES)), lines)


FIGURES = ("mape", "median", "bias", "within_10", "within_25")


def _with_interval(found: Mapping[str, float | None], signed: bool, factor: bool = False) -> str:
    value, low, high = found["value"], found["low"], found["high"]
    if value is None:
        return "–"
    if factor:
        return f"x{1 + value:.2f}" + ("" if low is None or high is None else f" [{1 + low:.2f}, {1 + high:.2f}]")
    form = "+.1f" if signed else ".1f"
    if low is None or high is None:
        return f"{100 * value:{form}} %"
    return f"{100 * value:{form}} % [{100 * low:{form}}, {100 * high:{form}}]"


def _parts(dimension: str, parts: Sequence[Mapping[str, Any]]) -> Table:
    columns = [_head(dimension), _head("answered"), _head("servers")]
    for _, name in METRICS:
        columns += [_head("MAPE", name), _head("median factor"), _head("bias"), _head("≤10, ≤25")]
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
    """Return model names without their publishers."""
    return " ".join(word.rpartition("/")[2] for word in what.split(" "))


def _plain(found: Mapping[str, float | None], key: str) -> str:
    """Return a figure in percent, with its sign if it has one, or as a factor, which has no sign."""
    if found["value"] is None:
        return "–"
    if key == "median":
        return f"x{1 + found['value']:.2f}"
    digits = {"bias": "+.1f", "within_10": ".0f", "within_25": ".0f"}.get(key, ".1f")
    return f"{100 * found['value']:{digits}}"


def _decisions(found: Mapping[str, Any]) -> list[Block]:
    lines: list[tuple[str, ...]] = []
    for kind, words in KINDS.items():
        part = found[kind]
        if not part["pairs"]:
            continue
        apart = part["apart"]
        lines.append((words, f"{part['pairs']:,}", _with_interval(part["right"], False), *_beside(part)))
        lines.append(
            (
                (f"{kind} that differ by more than 5 %"),
                f"{apart['pairs']:,}",
                _with_interval(apart["right"], False),
                *_beside(apart),
            )
        )
        lines.append(
            (
                f"{kind} ordered correctly, or within 10 % of the better one",
                f"{part['pairs']:,}",
                _with_interval(part["near"], False),
                "–",
                "–",
            )
        )
    choices = found["choices"]
    ceiling, naive = choices["ceiling"] or {}, choices["naive"]
    for name, words in (
        ("near", "choices: limit met, within 10 % of the best"),
        ("far", "choices: limit met, with less output"),
        ("broken", "choices: limit missed by more than 5 %"),
        ("declined", "choices: none made"),
    ):
        if not choices["choices"]:
            break
        beside = [percent(part.get(name, 0.0)) if part else "–" for part in (naive, ceiling)]
        lines.append((words, f"{choices['choices']:,}", _with_interval(choices[name], False), *beside))
    columns = ("decision", "n", "simulated", "naive rule", "ceiling from repeat noise")
    blocks = [Block("table", "", Table("Decisions", columns, lines), wide=True, text=RULE)] if lines else []
    misses = [miss for kind in KINDS for miss in found[kind]["misses"]]
    misses.sort(key=lambda miss: -abs(np.log1p(miss["measured"])))
    if misses:
        cells = [
            (m["about"], m["first"], m["second"], f"{100 * m['measured']:+.0f} %", f"{100 * m['simulated']:+.0f} %")
            for m in misses[:MISSES]
        ]
        columns = ("model, GPU, lengths", "first", "second", "measured", "simulated")
        table = Table("Wrongly ordered", columns, cells, (False, False, False, True, True))
        text = (
            f"Output per GPU of the first server relative to the second: {len(misses):,} pairs, with the largest "
            "differences first."
        )
        blocks.append(Block("table", "Pairs ordered wrongly", table, wide=True, text=text))
    return blocks


def _beside(part: Mapping[str, Any]) -> tuple[str, str]:
    naive, ceiling = ("–" if part[key] is None else percent(part[key]) for key in ("naive", "ceiling"))
    return naive, ceiling


def _scored(document: Mapping[str, Any]) -> list[Block]:
    rules = [(one["rule"], f"{one['cells']:,}", one["says"]) for one in document["screen"]]
    screen = Table("Screen", ("rule", "cells", "what it leaves out"), rules, (False, True, False))
    reasons = [(one["reason"], f"{one['cells']:,}") for one in document["not_answered"]]
    blocks = [Block("table", "The screen: contradictory measurements", screen, wide=True)]
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
