"""`servesim accuracy`: replays of measured servers, with scores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.cli.gate import a_directory
from servesim.errors import Interrupted, UserError

if TYPE_CHECKING:
    from servesim.experiments.accuracy.answers import Answer
    from servesim.experiments.accuracy.cells import Cell

ACCURACY_EXAMPLES = """
\b
Examples:
  servesim accuracy --only engine=vllm --only gpu=h100,h200 --limit 60 --out score
  servesim accuracy my-cells.csv --out score
  servesim accuracy my-benchmarks/

Without a file, the command scores the measured cells of an installed aiconfigurator-core (pip install
"servesim[silicon]"). my-cells.csv has the same columns, or those of runs described by their serve_command.
my-benchmarks/ contains recorded runs in any format that servesim validate reads, such as JSON of vllm bench serve.
servesim/experiments/accuracy/recipes.yaml defines how labels are replayed.
"""


def accuracy(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE|DIR]...", help="Tables of measured cells, or recorded runs.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help=(
                "Score only the cells with this value of engine, version, gpu, model, precision, mode, tp or "
                "concurrency. Repeatable."
            ),
        ),
    ] = None,
    without: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Exclude these cells and their copies, for example because costs were fitted to them. Repeatable.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score at most N cells, evenly spaced.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of every recipe, such as handoff.gb_s=17.4."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=a_directory,
            help="Folder for cells.csv, summary.json and report.html. A rerun computes only what is missing.",
        ),
    ] = None,
    date: Annotated[str | None, typer.Option(help="Date of the score. [default: today]")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for the intervals.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes. [default: one per core]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Score latencies and decisions against measured servers.

    Each measured cell is replayed. Rules screen out contradictory measurements. The score is shown with and without
    screening.
    """
    import datetime

    from servesim.experiments.accuracy import files as written
    from servesim.experiments.accuracy.study import accuracy as score
    from servesim.experiments.store import RUNS, Store
    from servesim.run.setting_names import assigned

    if out is not None:
        written.claim(out)
    today = date if date is not None else datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    count = jobs or os.cpu_count() or 1
    try:
        with Store(out / RUNS).open() if out is not None else nullcontext() as store:
            cells, document = score(
                *files or (),
                only=_fields(only or ()),
                without=without or (),
                limit=limit,
                jobs=count,
                seed=seed,
                date=today,
                on_answer=tell,
                changes=dict(map(assigned, settings or ())),
                store=store,
            )
    except KeyboardInterrupt:
        some = out is not None and (out / RUNS).exists()
        kept = f"; {out} contains the answers so far; run the command again to continue" if some else ""
        raise Interrupted(f"no score was written{kept}") from None
    if out is not None:
        from servesim.cli.report import write_report

        written.write(out, cells, document)
        write_report(out)
    if as_json:
        from servesim.experiments.documents import plain
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(plain(document)))
    else:
        print_score(document, out)
    if not document["scores"][0]["answered"]:
        raise typer.Exit(1)


def _fields(only: Sequence[str]) -> dict[str, list[str]]:
    """Return the values by field in `--only FIELD=VALUE,...`."""
    fields: dict[str, list[str]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        wanted = [value.strip() for value in values.split(",")]
        if not equals or not all(wanted):
            raise UserError(f"--only {text}: must be FIELD=VALUE, such as engine=vllm")
        fields.setdefault(name.strip(), []).extend(wanted)
    return fields


def tell(number: int, total: int, cell: Cell, answer: Answer) -> None:
    """Print the answer for a cell on stderr."""
    if answer.tpot_ms is None or answer.ttft_ms is None:
        told = f"not answered: {answer.reason}"
    else:
        told = ", ".join(
            f"{name} {simulated:.4g} ms, measured {measured:.4g}"
            for name, simulated, measured in (
                ("TPOT", answer.tpot_ms, cell.tpot_ms),
                ("TTFT", answer.ttft_ms, cell.ttft_ms),
            )
        )
    typer.echo(f"[{number}/{total}] {cell.name}: {told}", err=True)


def print_score(document: Mapping[str, Any], out: Path | None) -> None:
    """Print the excluded cells, the scores (by engine, and by engine, GPU and model), and the decisions."""
    from rich.table import Table

    from servesim.cli.console import open_console

    console = open_console()
    console.print(
        f"{document['cells']:,} cells, {document['kept']:,} after screening; {document['date']}", style="bold"
    )
    for found in document["screen"]:
        if found["cells"]:
            console.print(f"  left out: {found['cells']:,}: {found['rule']}", style="dim")
    table = Table("", "cells", "answered", box=None, header_style="bold")
    for name in (
        "TPOT\nMAPE",
        "median\nfactor",
        "\nbias",
        "TTFT\nMAPE",
        "median\nfactor",
        "\nbias",
        "E2E\nMAPE",
        "median\nfactor",
        "\nbias",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    shown = [row for row in document["scores"] if row["by"] in ("all", "engine", "engine, GPU and model")]
    for row in [{**document["unscreened"], "what": "all, without screening"}, *shown]:
        table.add_row(row["what"], f"{row['cells']:,}", f"{row['answered']:,}", *_figures(row))
    console.print(table)
    for found in document["not_answered"]:
        console.print(f"  not answered: {found['cells']:,}: {found['reason']}", style="dim")
    for line in decision_lines(document["decisions"]):
        console.print(line)
    if out is not None:
        console.print(f"written to {out}", style="dim")


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Return percentages, but medians as factors, which have no sign: x2.36 is both 2.36 times and 1 / 2.36 times."""
    if not row["answered"]:
        return []
    texts = []
    for metric in ("tpot", "ttft", "e2e"):
        mape, median, bias = (row["over_cells"][metric][name]["value"] for name in ("mape", "median", "bias"))
        texts += [f"{100 * mape:.1f} %", f"x{1 + median:.2f}", f"{100 * bias:+.1f} %"]
    return texts


def decision_lines(decisions: Mapping[str, Any]) -> list[str]:
    """Return a sentence or two for each kind of decision."""
    lines = []
    kinds = {
        "sizes": "sizes with equal clients per GPU",
        "engines": "engines with equal clients and GPUs",
        "settings": "commands that differ in one setting",
    }
    for kind, words in kinds.items():
        found, apart = decisions[kind], decisions[kind]["apart"]
        if found["pairs"]:
            lines.append(
                f"{found['pairs']:,} pairs of {words}: ordered correctly {_share(found['right'])}{_beside(found)}, "
                f"correct or within 10 % {_share(found['near'])}"
            )
        if apart["pairs"]:
            lines.append(
                f"{apart['pairs']:,} of them more than 5 % apart: ordered correctly "
                f"{_share(apart['right'])}{_beside(apart)}"
            )
    if (found := decisions["choices"])["choices"]:
        beside = {"naive": found["naive"].get("near", 0.0), "ceiling": (found["ceiling"] or {}).get("near")}
        lines.append(
            f"{found['choices']:,} choices under a TPOT limit: limit met and within 10 % of the best "
            f"{_share(found['near'])}{_beside(beside)}"
        )
        lines.append(
            f"limit missed by more than 5 % {_share(found['broken'])}, met with less output {_share(found['far'])}, no "
            f"choice made {_share(found['declined'])}"
        )
    return lines


def _beside(found: Mapping[str, Any]) -> str:
    from servesim.metrics.words import percent

    words = (("naive", "fewest GPUs or bits"), ("ceiling", "ceiling by noise"))
    parts = [f"{name} {percent(found[key])}" for key, name in words if found[key] is not None]
    return f" ({', '.join(parts)})" if parts else ""


def _share(estimate: Mapping[str, float | None]) -> str:
    """Return a share with its interval."""
    from servesim.metrics.words import percent

    if estimate["low"] is None:
        return percent(estimate["value"])
    return f"{percent(estimate['value'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"
