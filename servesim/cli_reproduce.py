"""`servesim reproduce`: published results run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment, or all.", show_default=False)] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and their claims.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the table (JSON) and the figures of each experiment.")
    ] = None,
) -> None:
    """Run published experiments again and hold the simulator's figures against theirs."""
    from rich.console import Console
    from rich.table import Table

    from servesim.experiments.reproduce import experiments, find, to_dict

    console = Console()
    if list_ or not name:
        table = Table("experiment", "claim", "source", box=None)
        for one in experiments().values():
            table.add_row(one.name, one.claim, one.source)
        console.print(table)
        return
    for one in find(name):
        outcome = one.run()
        table = Table("", "published", "simulated", "verdict", title=f"{one.name}: {one.claim}", title_justify="left")
        for row in outcome.rows:
            table.add_row(row.what, row.published, row.simulated, row.verdict)
        console.print(table)
        for row in outcome.rows:
            if row.note:
                console.print(f"{row.what}: {row.note}", highlight=False)
        for note in outcome.notes:
            console.print(f"note: {note}", highlight=False)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(to_dict(one, outcome), indent=1, ensure_ascii=False) + "\n"
            (out / f"{one.name}.json").write_text(text, encoding="utf-8")
            for file, draw in outcome.figures.items():
                draw(out / file)
            console.print(f"written to {out}/", highlight=False)
