"""`servesim reproduce`: claims of papers and lectures, rerun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.cli.known import print_json
from servesim.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from servesim_lab.claims import Experiment
    from servesim_lab.claims.worker import Done

EXAMPLES = """
\b
Examples:
  servesim reproduce --list
  servesim reproduce batching-steps
  servesim reproduce all --out claims
  servesim reproduce pagedattention --scenarios my-scenarios/

The assumptions of each experiment are a YAML file in lab/claims/scenarios/; --out copies it. An
edited copy in the folder given with --scenarios takes its place.
"""


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="An experiment, or all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their claims.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, and JSON, scenario and figures of each experiment.")
    ] = None,
    scenarios: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with scenarios (NAME.yaml) instead of the shipped ones.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes. [default: one per core]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: with --list, or what came of them.")] = False,
) -> None:
    """Rerun published claims.

    The simulator's figures are compared with the published ones.
    """
    from servesim.cli.console import open_console
    from servesim_lab.claims import experiments, find
    from servesim_lab.claims.assumptions import check_folder

    console = open_console()
    if (list_ or name is None) and as_json:
        known = [
            {"name": one.name, "about": one.group, "claim": one.claim, "source": one.source}
            for one in experiments().values()
        ]
        print_json({"experiments": known})
        return
    if list_ or name is None:
        _print_list(console, list(experiments().values()))
        return
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs is {jobs}, must be at least 1")
    chosen = find(name)
    check_folder(scenarios, list(experiments()))
    with _claimed(out) as folder:
        done = _run(chosen, scenarios, jobs or os.cpu_count() or 1)
        for one in done:
            if one.document is not None and not as_json:
                _print_rows(console, one.document)
        if folder is not None:
            from servesim_lab.claims_page import write

            write(folder, [one.document for one in done if one.document is not None], {d.name: d.error for d in done})
    if as_json:
        print_json({"documents": [one.document for one in done if one.document is not None]})
    elif out is not None:
        console.print(f"written to {out}/")
    failed = [one for one in done if one.document is None]
    for one in failed:
        typer.echo(f"error: {one.name}: {one.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _run(chosen: list[Experiment], scenarios: Path | None, jobs: int) -> list[Done]:
    """Run a single experiment in this process, or several in other processes; print progress on stderr."""
    from servesim_lab.claims.worker import run, run_all

    if len(chosen) == 1:
        return [run(chosen[0], scenarios)]
    count = 0

    def tell(done: Done) -> None:
        nonlocal count
        count += 1
        state = f"{done.cpu_s:.0f} s of CPU time" if done.document is not None else "failed"
        typer.echo(f"[{count}/{len(chosen)}] {done.name}: {state}", err=True)

    done: list[Done] = run_all(chosen, scenarios, jobs, tell)
    return done


@contextmanager
def _claimed(out: Path | None) -> Iterator[Path | None]:
    """Yield the folder for the claims: the folder itself if it contains earlier claims, or else a temporary one next to
    it, which takes its place at the end. An interrupt or an error leaves nothing new behind."""
    from servesim.run.result_files import clear_up, writable
    from servesim_lab.claims_page import INDEX

    if out is None or (out / INDEX).is_file():
        yield out
        return
    if not out.name:
        raise UserError(f'--out "{out}": is not the name of a folder')
    for name in sorted(path.name for path in out.iterdir()) if out.is_dir() else ():
        raise UserError(f"--out {out}: exists and is not a claims result of servesim (it holds {name})")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: exists and is not a folder")
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    new = [folder for folder in out.parents if not folder.exists()]
    try:
        with writable(out):
            clear_up(out)
            partial.mkdir(parents=True)
        yield partial
        with writable(out):
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # not empty: it has the claims
                folder.rmdir()


def _print_list(console: Console, known: list[Experiment]) -> None:
    from rich.table import Table

    table = Table("experiment", "about", "claim", "source", box=None, header_style="bold")
    for one in known:
        table.add_row(one.name, one.group, one.claim, one.source)
    console.print(table)


def _print_rows(console: Console, document: dict[str, Any]) -> None:
    from rich.table import Table

    console.print(f"{document['name']}: {document['claim']}", style="bold")
    table = Table("", "published", "simulated", "verdict", box=None, header_style="bold")
    for row in document["rows"]:
        table.add_row(row["what"], row["published"], row["simulated"], row["verdict"])
    console.print(table)
    for row in document["rows"]:
        if row["note"]:
            console.print(f"{row['what']}: {row['note']}")
    for note in document["notes"]:
        console.print(f"note: {note}")
