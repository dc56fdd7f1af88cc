"""`servesim reproduce`: claims of papers and lectures, run again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from servesim.experiments.reproduce import Experiment
    from servesim.experiments.reproduce.worker import Done

EXAMPLES = """
Examples:

  servesim reproduce --list

  servesim reproduce batching-steps

  servesim reproduce all --out claims

  servesim reproduce pagedattention --scenarios my-scenarios/

The assumptions of each experiment are a YAML file in servesim/experiments/reproduce/scenarios/; --out copies it. An
edited copy in the folder given with --scenarios takes its place.
"""


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or all.", show_default=False)] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their claims.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, and JSON, scenario and figures of each experiment.")
    ] = None,
    scenarios: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with scenarios (NAME.yaml) instead of the shipped ones.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes. [default: one a core]")] = None,
) -> None:
    """Run published claims again and hold the simulator's figures against them."""
    from rich.console import Console

    from servesim.experiments.reproduce import experiments, find
    from servesim.experiments.reproduce.assumptions import check_folder

    console = Console()
    if list_ or not name:
        _print_list(console, list(experiments().values()))
        return
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs is {jobs}, must be at least 1")
    chosen = find(name)
    check_folder(scenarios, list(experiments()))
    if out is not None:
        _make(out)
    done = _run(chosen, scenarios, jobs or os.cpu_count() or 1)
    for one in done:
        if one.document is not None:
            _print_rows(console, one.document)
    if out is not None:
        from servesim.reports.claims_page import write

        write(out, [one.document for one in done if one.document is not None], {d.name: d.error for d in done})
        console.print(f"written to {out}/", highlight=False)
    failed = [one for one in done if one.document is None]
    for one in failed:
        typer.echo(f"error: {one.name}: {one.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _run(chosen: list[Experiment], scenarios: Path | None, jobs: int) -> list[Done]:
    """One experiment in this process, several in others; progress on stderr."""
    from servesim.experiments.reproduce.worker import run, run_all

    if len(chosen) == 1:
        return [run(chosen[0], scenarios)]
    count = 0

    def tell(done: Done) -> None:
        nonlocal count
        count += 1
        state = f"{done.cpu_s:.0f} s of CPU time" if done.document is not None else "failed"
        typer.echo(f"[{count}/{len(chosen)}] {done.name}: {state}", err=True)

    return run_all(chosen, scenarios, jobs, tell)


def _make(out: Path) -> None:
    """The folder for the claims: one that holds claims of before, an empty or a new one."""
    from servesim.reports.claims_page import INDEX

    if out.is_dir() and not (out / INDEX).is_file():
        for name in sorted(path.name for path in out.iterdir()):
            raise UserError(f"--out {out}: exists and holds no claims of servesim (but {name})")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error


def _print_list(console: Console, known: list[Experiment]) -> None:
    from rich.table import Table

    table = Table("experiment", "about", "claim", "source", box=None)
    for one in known:
        table.add_row(one.name, one.group, one.claim, one.source)
    console.print(table)


def _print_rows(console: Console, document: dict[str, Any]) -> None:
    from rich.table import Table

    title = f"{document['name']}: {document['claim']}"
    table = Table("", "published", "simulated", "verdict", title=title, title_justify="left")
    for row in document["rows"]:
        table.add_row(row["what"], row["published"], row["simulated"], row["verdict"])
    console.print(table)
    for row in document["rows"]:
        if row["note"]:
            console.print(f"{row['what']}: {row['note']}", highlight=False)
    for note in document["notes"]:
        console.print(f"note: {note}", highlight=False)
