"""Terminal output of experiments: tables that are quick to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from servesim.cli.console import open_console, print_notes
from servesim.experiments.capacity_answer import never_text
from servesim.experiments.capacity_words import bracket_words, brackets, error_sentences
from servesim.experiments.compare_error import baseline_sentence, sentences
from servesim.experiments.front_error import entries_of, front_word
from servesim.experiments.goals import header
from servesim.experiments.metrics import metric_label
from servesim.experiments.objects import title
from servesim.experiments.recommend.front import NEAR, front_words, shown
from servesim.experiments.recommend.words import knob_words
from servesim.experiments.replicates import counted
from servesim.experiments.store import DEPLOY
from servesim.experiments.sweep_words import bests_of, sure
from servesim.metrics.words import number, percent, valued
from servesim.run.sections import rate_words

COLOURS = {"better": "green", "worse": "red", "undecided": "yellow", "unstable": "bold red", "failed": "bold red"}
COLOURS |= {"too fast": "red", "too slow": "red"}


def print_compare(document: Mapping[str, Any], out: Path | None, verbose: bool = False) -> None:
    """Print the answer in a sentence, a table by metric, and what could change the decision; `verbose`: also where
    policies differ, and all notes."""
    console = open_console()
    workload, repeats, how = document["workload"], document["replicates"], document["settings"]
    console.print(_workload(workload), style="bold")
    count = counted(repeats) if repeats["kind"] != "blocks" else "successive parts of one run"
    console.print(document["answer"], style="bold")
    console.print(
        f"paired over {count}, {percent(how['level'])} intervals; baseline: {document['baseline']}", style="dim"
    )
    console.print(_comparison_table(document))
    answer, baseline = document["answer"], document["baseline"]
    own = baseline_sentence(document.get("baseline_bars"), baseline)
    known = [*document["headline"], *sentences(document.get("model_error", ()), baseline), *([own] if own else [])]
    lines = [line for line in known if line not in answer]
    notes = [*map(_drilled, document["drill_down"]), *(note for note in document["notes"] if note not in known)]
    print_notes(console, document["warnings"], lines, notes, out, verbose)


def _drilled(found: Mapping[str, Any]) -> str:
    """Return how many requests of a variant are slower, why, and where it first differs from the baseline."""
    causes = ", ".join(f"{count:,} {cause}" for cause, count in found["causes"].items())
    return (
        f"{found['variant']}: {found['worse']:,} of {found['compared']:,} requests more than 5 % slower"
        f"{f' ({causes})' if causes else ''}, {found['better']:,} faster; first difference {_first(found)}"
    )


def _first(found: Mapping[str, Any]) -> str:
    return found["divergence_text"] if found["divergence"] is not None else "none"


def _workload(workload: Mapping[str, Any], requests: int | None = None) -> str:
    requests = workload.get("requests") or requests
    parts = [title(str(workload.get("trace", "")))]
    parts += [f"{requests:,} requests"] if requests else []
    parts += [rate_words(workload["rate"])] if workload.get("rate") else []
    parts += [f"{workload[key]}" for key in ("model", "gpu") if workload.get(key)]
    return ", ".join(filter(None, parts))


def _comparison_table(document: Mapping[str, Any]) -> Table:
    oracle = any(v["oracle"] for v in document["variants"])
    names = ("policy", "value", "change", "interval", *(("to oracle",) if oracle else ()), "verdict")
    table = Table(*names, box=None, header_style="bold")
    for column in table.columns[1:-1]:
        column.justify, column.no_wrap = "right", True
    last = None
    for row in document["rows"]:
        if row["metric"] != last:
            table.add_row(metric_label(row["metric"]), style="bold")
        low, high = row["change_low"], row["change_high"]
        interval = "" if low is None or high is None else f"{_change(row, low, False)} to {_change(row, high, False)}"
        table.add_row(
            f"  {row['variant']}",
            valued(row["value"], row["unit"]),
            "" if row["change"] is None else _change(row, row["change"]),
            interval,
            *((("" if row["gap_to_oracle"] is None else _change(row, row["gap_to_oracle"])),) if oracle else ()),
            _verdict(row),
        )
        last = row["metric"]
    return table


def print_sweep(document: Mapping[str, Any], out: Path | None, verbose: bool = False) -> None:
    """Print the best variants in a sentence, a row for each, with the best ones marked, and what could change the
    decision; `verbose`: also all notes."""
    console = open_console()
    console.print(_workload(document["workload"]), style="bold")
    console.print(document["answer"], style="bold")
    axes, metrics = list(document["axes"]), document["metrics"]
    names = [m["name"] for m in metrics]
    metrics = [m for m in metrics if m["name"].replace("_mean", "_p99") not in names or "_mean" not in m["name"]]
    metrics.sort(key=lambda m: m["name"] not in document["settings"]["best_by"])  # put best_by metrics first
    columns = [[axis, *(str(v["axes"].get(axis, "")) for v in document["variants"])] for axis in axes]
    entries = entries_of(document)
    columns.append(["", *(_state(v, entries.get(v["label"])) for v in document["variants"])])
    shown = [_metric_column(m, [v["values"][m["name"]] for v in document["variants"]]) for m in metrics]
    left = _fitting(columns, shown, console.width)
    columns[-1:-1] = shown[: len(shown) - left]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, (head, *_) in enumerate(columns):
        number_column = len(axes) <= i < len(columns) - 1
        table.add_column(head, justify="right" if number_column else "left", no_wrap=number_column)
    names_of_best = [best["label"] for best in bests_of(document)]
    for v, *cells in zip(document["variants"], *(column[1:] for column in columns), strict=True):
        bold = v["label"] in names_of_best or v["equal_to"] in names_of_best
        table.add_row(*cells[:-1], _coloured(cells[-1]), style="bold" if bold else None)
    console.print(table)
    others = ", ".join(metric_label(m["name"]) for m in metrics[len(metrics) - left :])
    notes = [f"no room for {others}: widen the window, or use --json or --out"] if left else []
    print_notes(console, document["warnings"], sure(document), [*notes, *document["notes"]], out, verbose)


def _metric_column(metric: Mapping[str, Any], values: Sequence[float | None]) -> list[str]:
    """Return the metric's label with the unit below it, and its values; prices and shares carry their unit in each
    value."""
    own = metric["unit"] in ("$", "share")
    head = metric_label(metric["name"]) + ("" if own else f"\n{metric['unit']}")
    texts = [valued(value, metric["unit"] if own else "") for value in values]
    return [head, *texts]


def _fitting(columns: Sequence[Sequence[str]], more: Sequence[Sequence[str]], room: int) -> int:
    """Return how many of the `more` columns do not fit next to the others; at least one is shown."""

    def width(column: Sequence[str]) -> int:
        return 2 + max(len(line) for text in column for line in text.splitlines() or [""])

    taken = sum(map(width, columns))
    for i, column in enumerate(more):
        taken += width(column)
        if i and taken > room:
            return len(more) - i
    return 0


def _state(variant: Mapping[str, Any], entry: Mapping[str, Any] | None) -> str:
    if variant["status"] == "failed":
        return "failed"
    if variant["unstable"] or variant["stability"] == "unstable":
        return "unstable"
    if variant["equal_to"] is not None:
        return f"= {variant['equal_to']}"
    return front_word(entry, variant["pareto"])


def _coloured(state: str) -> Text:
    return Text(state, COLOURS.get(state, ""))


def print_capacity(document: Mapping[str, Any], out: Path | None, verbose: bool = False) -> None:
    """Print the answer in one sentence, a row for each deployment with its capacity and price, or the best share of
    requests within the SLO, and what could change the decision; `verbose`: also all notes."""
    console = open_console()
    how, repeats = document["settings"], document["replicates"]
    console.print(_workload(document["workload"], document.get("requests")), style="bold")
    console.print(document["answer"], style="bold")
    windows = ""
    if "window_minutes" in how:
        windows = (
            f", over the whole trace and in every {how['window_minutes']:g}-minute window with at least "
            f"{how['window_requests']:,} requests"
        )
    head = [f"{header(how['goals'])}{windows}", counted(repeats), bracket_words(document)]
    console.print("; ".join(filter(None, head)), style="dim")
    table = Table(box=None, header_style="bold", pad_edge=False)
    heads = ("deployment", "GPUs", "rate", "interval", "share", "TTFT\np99", "$/hour", "$/M\ntokens", "")
    cells = [_capacity_row(row) for row in document["rows"]]
    shown = [i for i in range(len(heads)) if any(row[i] for row in cells)]
    for i in shown:
        left = heads[i] in ("deployment", "")
        table.add_column(heads[i], justify="left" if left else "right", no_wrap=not left)
    for row, texts in zip(document["rows"], cells, strict=True):
        bold = row["cheapest"] and len(cells) > 1
        table.add_row(*(texts[i] for i in shown), style="bold" if bold else None)
    console.print(table)
    never = [row for row in document["rows"] if row["verdict"] == "never" and row["best_attainment"] is not None]
    lines = [f"{row['label'] or 'this'}: {never_text(row)}" for row in never] + error_sentences(document)
    worth = [one["says_worth"] for one in document.get("worth", ()) if one["says_worth"] not in document["answer"]]
    print_notes(console, document["warnings"], lines, [*worth, *document["notes"]], out, verbose)


def print_recommend(document: Mapping[str, Any], out: Path | None, verbose: bool = False) -> None:
    """Print the recommendation, why it was chosen, and the command that starts it."""
    print_capacity(document, out, verbose)
    if (found := document["recommendation"]) is None:
        return
    console = open_console()
    _print_front(console, found["front"], verbose)
    against = [found[key]["says"] for key in ("runner_up", "published", "miss") if found[key] is not None]
    for head, lines in (
        ("Why", against),
        ("What mattered", [knob_words(one) for one in found["knobs"]]),
        ("How sure", found["sure"]),
        ("Check", found["needs"]),
        ("What would change the answer", found["changes"]),
        ("To be surer", found["measure"]),
        ("Not searched", [one["says"] for one in found["not_searched"]] if verbose else []),
    ):
        if lines:
            console.print(head, style="bold")
        for line in lines:
            console.print(f"  - {line}", soft_wrap=True)
    console.print("What to run", style="bold")
    run, where = found["run"], f" in {out / DEPLOY}" if out is not None else " (--out DIR writes them)"
    names = f"files: {', '.join(run['files'])}{where}; other forms: {', '.join(run['forms'])}"
    console.print(run["command"] or "no single command starts it", soft_wrap=True, highlight=False, markup=False)
    if (several := int(found["settings"].get("replicas") or 1)) > 1 and run["command"]:
        console.print(f"The command starts one of {several} replicas.", soft_wrap=True)
    console.print(names, style="dim", soft_wrap=True)


def _print_front(console: Console, front: Mapping[str, Any], verbose: bool) -> None:
    """Print the Pareto front of price, latency and headroom; `verbose`: also points that cost about the same."""
    name = metric_label(front["latency"])
    console.print(front_words(front), style="bold")
    table = Table(box=None, header_style="bold", pad_edge=False)
    figures = ("rate", "$/hour", "$/M\ntokens", name.replace(" p", "\np"), "headroom\nat least")
    for head in ("deployment", "GPUs", *figures):
        left = head == "deployment"
        table.add_column(head, justify="left" if left else "right", no_wrap=not left)
    for point in shown(front["points"], 1.0 if verbose else NEAR):
        table.add_row(
            point["label"] or "this",
            f"{point['gpus']} x {point['gpu']}",
            f"{number(point['rate'])}/s",
            *(number(point[key]) for key in ("usd_per_hour", "usd_per_million_tokens")),
            valued(point["ms"], "ms"),
            "" if point["headroom"] is None else f"{100 * point['headroom']:.0f} %",
        )
    console.print(table)


print_worth = print_capacity
"""Print what each item is worth, in the form of an answer to a capacity question."""


def _capacity_row(row: Mapping[str, Any]) -> list[str]:
    values, low, high = row["values"], row["rate_low"], row["rate_high"]
    gpus = "" if row["gpus"] is None else f"{row['gpus']} x {row['gpu']}"
    of_gpus, of_rate = brackets(row)
    gpus, rate = gpus + of_gpus, "" if row["rate"] is None else f"{number(row['rate'])}/s{of_rate}"
    interval = "" if low is None else f"{number(low)} to {number(high)}"
    carries, low_usd = row["verdict"] == "carries", row["usd_per_hour_low"]
    words = [word for word in ("cheapest", "pareto") if row[word]] if carries else [row["verdict"]]
    best = "least latency" if row.get("latency") else "cheapest"
    figures = (row["usd_per_hour"], values["usd_per_million_tokens"])
    return [
        row["label"] or "this",
        gpus,
        rate,
        interval,
        "" if row["best_attainment"] is None else percent(row["best_attainment"]),
        valued(values["ttft_p99"], "ms") if carries else "",
        *(number(figure) if carries or low_usd is not None else "" for figure in figures),
        ", ".join(words).replace("pareto", "Pareto").replace("cheapest", best),
    ]


def _verdict(row: Mapping[str, Any]) -> Text:
    more = f", {row['more_replicates']:,} more replicates would decide" if row["more_replicates"] else ""
    return Text(f"{row['verdict']}{more}", COLOURS.get(row["verdict"], ""))


def _change(row: Mapping[str, Any], change: float, unit: bool = True) -> str:
    if row["scale"] == "ratio" or row["unit"] == "share":
        return f"{100 * change:+.1f}{(' %' if row['scale'] == 'ratio' else ' points') if unit else ''}"
    return f"{change:+.2f}"
