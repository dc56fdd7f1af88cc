"""`servesim reproduce`: claims of papers and lectures, rerun."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.cli.known import print_json
from servesim.errors import Interrupted, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from servesim.experiments.store import Store
    from servesim_lab.claims import Experiment
    from servesim_lab.claims.worker import Done, Told

EXAMPLES = """
\b
Examples:
  servesim reproduce --list
  servesim reproduce batching-steps
  servesim reproduce all --out claims
  servesim reproduce pagedattention --scenarios my-scenarios/

The assumptions of each experiment are in a YAML file in lab/claims/scenarios/. --out copies the file. An
edited copy in the folder of --scenarios replaces it.
"""


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Experiment to rerun, or all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their claims.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html and for the JSON, scenario and figures of each experiment. Experiments are "
            "kept there as they finish: a rerun computes only what is missing, also after a run that was killed."
        ),
    ] = None,
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of scenarios (NAME.yaml) to use instead of the shipped ones."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes. [default: one per core]")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the list with --list, otherwise the results.")
    ] = False,
) -> None:
    """Rerun published claims.

    The command compares simulated figures with the published ones.
    """
    from servesim.cli.console import open_console
    from servesim_lab.claims import experiments, find
    from servesim_lab.claims.assumptions import check_folder

    console = open_console()
    if list_ or name is None:
        _print_list(console, list(experiments().values()), as_json)
        return
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs is {jobs} but must be at least 1")
    chosen = find(name)
    check_folder(scenarios, list(experiments()))
    done: list[Done] = []
    printer = None if as_json else Printer(console, {one.name: one.claim for one in chosen})
    with _kept(out) as store:
        on_row = printer.row if printer is not None else _silent
        with closing(_run(chosen, scenarios, jobs or os.cpu_count() or 1, store, on_row)) as running:
            for one in running:
                done.append(one)
                if one.document is not None and printer is not None:
                    printer.rest(one.document)
        if out is not None:
            from servesim_lab.claims_page import write

            write(out, [one.document for one in done if one.document is not None], {d.name: d.error for d in done})
    if as_json:
        print_json({"documents": [one.document for one in done if one.document is not None]})
    elif out is not None:
        console.print(f"written to {out}/")
    failed = [one for one in done if one.document is None]
    for one in failed:
        typer.echo(f"error: {one.name}: {one.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _run(
    chosen: list[Experiment], scenarios: Path | None, jobs: int, store: Store | None, on_row: Told
) -> Generator[Done, None, None]:
    """Yield what came of the experiments, in order: those in the store as they are, a single one from this process,
    several from others; `on_row` receives new rows as they come. Print progress on stderr, and add what is new to the
    store."""
    from servesim.run.result_files import SUMMARY
    from servesim_lab.claims.worker import Done, run, run_all

    addresses = {one.name: _address(one, scenarios) for one in chosen} if store is not None else {}
    known = {name: Done(name, document) for name in addresses if (document := _stored(store, addresses[name]))}
    count = len(known)

    def tell(done: Done) -> None:
        nonlocal count
        count += 1
        if store is not None and done.document is not None and (address := addresses[done.name]) is not None:
            store.put(address, {SUMMARY: json.dumps(done.document).encode()})
        state = f"{done.cpu_s:.0f} s of CPU time" if done.document is not None else "failed"
        if several:
            typer.echo(f"[{count}/{len(chosen)}] {done.name}: {state}", err=True)

    several = len(chosen) > 1
    if known and several:
        typer.echo(f"[{count}/{len(chosen)}] kept from before", err=True)
    left = [one for one in chosen if one.name not in known]
    others = run_all(left, scenarios, jobs, tell, on_row) if several else None
    try:
        for one in chosen:
            if one.name in known:
                yield known[one.name]
            elif others is not None:
                yield next(others)
            else:
                done = run(one, scenarios, on_row)
                tell(done)
                yield done
    finally:
        if others is not None:
            others.close()


def _stored(store: Store | None, address: str | None) -> dict[str, Any] | None:
    if store is None or address is None:
        return None
    try:
        return store.document(address)
    except UserError as error:  # a file that was cut off
        typer.echo(f"computed again: {error}", err=True)
        store.drop(address)
        return None


def _address(one: Experiment, scenarios: Path | None) -> str | None:
    """Return the address of an experiment's document in a store, or None if its scenario is invalid."""
    from servesim.experiments.input_files import digests_in
    from servesim.experiments.store import address_with
    from servesim_lab.claims.assumptions import load

    try:
        given, text = load(one.name, scenarios)
    except UserError:  # told by the run
        return None
    inputs = {"claim": one.name, "scenario": text, "files": digests_in(given)}
    return address_with(inputs, "servesim.experiments", "servesim.reports", "servesim_lab")


@contextmanager
def _kept(out: Path | None) -> Iterator[Store | None]:
    """Yield the store of finished experiments in the folder for the claims. An interrupt or an error leaves what has
    finished, and a folder that was not there only if it holds something."""
    from servesim.experiments.store import RUNS, Store
    from servesim_lab.claims_page import INDEX

    if out is None:
        yield None
        return
    if not out.name:
        raise UserError(f'--out "{out}": is not the name of a folder')
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: exists and is not a folder")
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if held not in ([], [RUNS]) and INDEX not in held:
        raise UserError(f"--out {out}: exists and is not a claims result of servesim (it holds {held[0]})")
    try:
        with Store(out / RUNS).open() as store:
            yield store
    except KeyboardInterrupt:
        if not (out / RUNS).exists():
            raise
        raise Interrupted(f"{out} has the claims so far; run it again to continue") from None


def _print_list(console: Console, known: list[Experiment], as_json: bool) -> None:
    from rich.table import Table

    from servesim_lab.claims.record import counts, recorded
    from servesim_lab.claims.refused import REFUSED

    found = counts()
    if as_json:
        listed = [{"name": one.name, "about": one.group, "claim": one.claim, "source": one.source} for one in known]
        print_json({"experiments": listed, "refused": REFUSED, "recorded": found})
        return
    table = Table("experiment", "about", "claim", "source", box=None, header_style="bold")
    for one in known:
        table.add_row(one.name, one.group, one.claim, one.source)
    console.print(table)
    console.print("claims that no experiment reruns:", style="bold")
    for claim, why in REFUSED.items():
        console.print(f"{claim}: {why}")
    told = ", ".join(f"{count} {verdict}" for verdict, count in found.items())
    kept = f"the shipped record of {len(recorded())} of them"
    console.print(f"{len(known)} experiments; {sum(found.values())} claims in {kept}: {told}")


def _silent(name: str, row: Mapping[str, Any]) -> None:
    """Print nothing, for JSON."""


class Printer:
    """Rows of experiments, printed as they come."""

    def __init__(self, console: Console, claims: Mapping[str, str]) -> None:
        """Print to a console; `claims` are those of the experiments by name."""
        self._console, self._claims = console, claims
        self._shown: Counter[str] = Counter()

    def row(self, name: str, row: Mapping[str, Any]) -> None:
        """Print a row, and before the first one of an experiment what it claims."""
        from servesim_lab.claims import said

        if not self._shown[name]:
            self._console.print(f"{name}: {self._claims[name]}", style="bold")
        self._shown[name] += 1
        against = f"{row['published']} published, " if row["published"] not in ("", "-") else ""
        verdict = f"{said(row['verdict'], row.get('share')):<14}"
        self._console.print(f"{verdict}{row['what']}: {against}{row['simulated']} simulated")
        if row["note"]:
            self._console.print(f"{'':14}{row['note']}")

    def rest(self, document: Mapping[str, Any]) -> None:
        """Print the rows of an experiment that have not been printed yet, and its notes."""
        for row in document["rows"][self._shown[document["name"]] :]:
            self.row(document["name"], row)
        for note in document["notes"]:
            self._console.print(f"note: {note}")
