"""Terminal output: the tables of a run and of a trace, and the progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from servesim.cli.console import open_console, print_notes
from servesim.metrics.request_figures import LATENCY_LABELS, SHOWN
from servesim.metrics.words import number, percent
from servesim.run.agreement import REQUESTS
from servesim.run.result import Result
from servesim.run.setup import Setup
from servesim.run.shown import STATISTICS, UNNAMED, all_rows, answer, labeled
from servesim.run.simulate import Progress as OnProgress


class ProgressBar:
    """Progress bar on stderr, in simulated time from the first to the last arrival."""

    def __init__(self) -> None:
        columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, setup: Setup) -> OnProgress:
        first, last = setup.facts.first_ns, setup.facts.last_ns
        task = self._progress.add_task("starting", total=max(last - first, 1))

        def update(now_ns: int, left: int) -> None:
            text = f"{now_ns / 1e9:,.0f} s simulated, {left:,} of {len(setup.facts):,} requests"
            self._progress.update(task, completed=min(now_ns, last) - first, description=text)

        return update


def print_summary(
    result: Result, out: Path | None, verbose: bool = False, versions: tuple[str, str] | None = None
) -> None:
    """Print the figures of a run to stdout, what they say in a sentence, and the warnings that could change the
    decision. `verbose`: all warnings and notes. `versions`: warning and note on other versions of the engine, if those
    differ."""
    console, summary = open_console(), result.summary
    console.print(_title(summary), style="bold")
    console.print(_latency_table(summary["latency_ms"]))
    console.print(_figures(summary))
    for kind in ("class", "tenant"):
        if (found := labeled(summary, kind)) is not None:
            console.print(_group_table(kind, *found, summary))
    console.print(answer(summary), style="bold red" if summary["stability"]["unstable"] else "bold")
    for reason, count in summary["requests"]["rejection_reasons"].items():
        console.print(f"rejected {count:,}: {reason}", style="yellow")
    for reason, count in summary["requests"]["abort_reasons"].items():
        console.print(f"aborted {count:,}: {reason}", style="yellow")
    if summary["requests"]["unsent"]:
        console.print(
            f"never sent {summary['requests']['unsent']:,}: an earlier request that they depend on failed",
            style="yellow",
        )
    if result.scenario.check:
        console.print(_checked(result), style="dim")
    warning, note = ((one,) for one in versions) if versions is not None else ((), ())
    notes = [*summary["notes"], *_bars(result.intervals), *note, _measurements(summary)]
    print_notes(console, [*warning, *summary["warnings"]], (), notes, out, verbose)


def _bars(bars: Mapping[str, Any]) -> list[str]:
    """Return the source of the error bars in full, if there are any."""
    far = f": {bars['farthest']}" if bars.get("farthest") else ""
    return [f"error bars: {bars['says']}{far}"] if bars.get("kind") else []


def _checked(result: Result) -> str:
    """Return the statement of what `--check` confirmed; a failed check would have ended the run."""
    told = "checked: scheduler and memory kept their invariants after every step"
    if result.scenario.mode == "reference":
        return told
    first = min(REQUESTS, result.summary["requests"]["arrived"])
    return f"{told}; fast mode and reference mode agree on the first {first:,} requests"


def _group_table(
    kind: str, groups: list[tuple[str, dict[str, Any]]], others: str, requests: int, summary: Mapping[str, Any]
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (kind, "requests", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "within SLO"):
        table.add_column(column, justify="left" if column == kind else "right")
    for name, group in groups:
        cells = [name or UNNAMED, f"{group['arrived']:,}"]
        for metric in ("ttft", "tpot"):
            stats = group["latency_ms"][metric]
            cells += [number(stats[p]) if stats else "" for p in ("p50", "p99")]
        goodput = group["goodput"]
        table.add_row(*cells, percent(goodput["slo_attainment"]) if goodput else "")
    if others:
        table.add_row(others, f"{requests:,}")
    if kind == "tenant":
        said = ", ".join(f"{key} {number(value)}" for key, value in summary["tenants"]["jain_index"].items())
        table.caption, table.caption_justify = f"Jain's fairness index: {said}", "left"
    return table


def _title(summary: dict[str, Any]) -> str:
    scenario, trace = summary["scenario"], summary["provenance"]["trace"]
    policies = [scenario["scheduler"]["name"], scenario["kv"]["name"]]
    if scenario["replicas"] > 1:
        policies.append(scenario["router"]["name"])
    gpus = scenario["gpu"] if scenario["tp"] == 1 else f"{scenario['tp']} x {scenario['gpu']}"
    if scenario["pp"] > 1:
        gpus = f"{scenario['pp']} stages of {gpus}"
    if scenario.get("dp", 1) > 1:
        gpus = f"{scenario['dp']} data-parallel ranks of {gpus}"
    if scenario.get("pools"):
        each = [f"{pool['replicas']} of {pool['gpu']}" for pool in scenario["pools"]]
        gpus = f"{scenario['replicas']} replicas ({', '.join(each)})"
    elif scenario["replicas"] > 1:
        gpus = f"{scenario['replicas']} replicas of {gpus}"
    return (
        f"{trace['name']} ({trace['requests']:,} requests): {scenario['model']} {scenario['dtype']} on {gpus}, "
        f"{' / '.join(policies)}"
    )


def _latency_table(latencies: dict[str, dict[str, float] | None]) -> Table:
    table = Table("ms", *STATISTICS, box=None, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for key in SHOWN:
        stats = latencies[key]
        table.add_row(LATENCY_LABELS[key], *(number(stats[c]) if stats else "-" for c in STATISTICS))
    return table


def _figures(summary: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in all_rows(summary):
        table.add_row(label, value)
    return table


def _measurements(summary: dict[str, Any]) -> str:
    tables = summary["provenance"]["kernel_tables"]
    if tables is None:
        return "kernel measurements: none; all costs are roofline estimates"
    return f"kernel measurements: {', '.join(tables['measured_by'])}, tables {tables['name']}"


def print_trace(summary: Any) -> None:
    """Print the figures of a trace (a servesim.traces TraceSummary) to stdout."""
    console = open_console()
    console.print(summary.name, style="bold")
    grid = Table.grid(padding=(0, 2))
    rate = f"{summary.mean_rate:.4g} requests/s" if summary.mean_rate is not None else "all at once"
    several = f", {summary.sequences:,} sampled answers" if summary.sequences > summary.requests else ""
    grid.add_row("requests", f"{summary.requests:,}{several}")
    grid.add_row("span", f"{summary.span_s:,.3f} s, {rate}")
    if summary.cv is not None:
        grid.add_row("gaps", f"coefficient of variation {summary.cv:.3f} (Poisson: 1)")
    spread = [f"{value:.2f} at {w} s" for w, value in summary.dispersion.items() if value is not None]
    if spread:
        grid.add_row("counts", f"variance/mean {', '.join(spread)} (Poisson: 1)")
    grid.add_row("peak", ", ".join(f"{value:.4g} requests/s over {w} s" for w, value in summary.peak_rate.items()))
    hits = summary.prefix
    if hits is None:
        grid.add_row("prefix hits", summary.prefix_note)
    else:
        grid.add_row(
            "prefix hits",
            f"{percent(hits.block_hit_rate)} of blocks of {hits.block_size}, {percent(hits.token_hit_rate)} of prompt "
            "tokens, with an infinite cache",
        )
    if summary.sessions is not None:
        _session_rows(grid, summary.sessions)
    console.print(grid)
    table = Table("tokens", "mean", "p50", "p90", "p95", "p99", "max", "total", box=None, header_style="bold")
    for label, side in (("prompt", summary.prompt), ("output", summary.output)):
        values = (side.mean, side.p50, side.p90, side.p95, side.p99)
        table.add_row(label, *map(number, values), f"{side.max:,}", f"{side.total:,}")
    console.print(table)
    for note in summary.notes:
        console.print(f"note: {note}", style="dim")


def _session_rows(grid: Table, s: Any) -> None:
    """Add the rows on conversations: turns, pauses between them, and the shared parts of their prompts."""
    turns = s.turns
    grid.add_row(
        "sessions",
        f"{s.sessions:,}, {percent(s.several_turns)} of them with several turns; turns: mean {number(turns.mean)}, "
        f"p50 {number(turns.p50)}, p90 {number(turns.p90)}, at most {turns.max:,.0f}",
    )
    if (pause := s.pause_s) is not None:
        grid.add_row(
            "pauses",
            f"{s.pauses}: mean {number(pause.mean)} s, p50 {number(pause.p50)} s, p90 {number(pause.p90)} s, "
            f"p99 {number(pause.p99)} s",
        )
    if s.later_shared is not None:
        grid.add_row(
            "repeated",
            f"{percent(s.later_shared)} of prompt tokens in later turns repeat the beginning of an earlier prompt, "
            f"{percent(s.first_shared)} in first turns",
        )
