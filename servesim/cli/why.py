"""`servesim why`: the history of one request of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHY_EXAMPLES = """
\b
Examples:
  servesim why result 17
  servesim why result 18 --out request-18.svg

The requests in the same steps are named if the run was recorded with --step-requests --mode reference.
"""


def why(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that servesim run wrote with --out.")],
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="Row of the request in the trace, from 0, or its name.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Figure to write: .svg, .png or .pdf.")
    ] = None,
) -> None:
    """Explain what happened to one request.

    The command shows the waiting times with their causes, concurrent requests, preemptions and cache hits.
    """
    from servesim.cli.report import undamaged
    from servesim.errors import UserError
    from servesim.reports.why import Story

    if out is not None and out.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"--out {out}: must end in .svg, .png or .pdf")
    with undamaged(folder):
        story = Story.of(folder, request)
        for line in story.lines():
            typer.echo(line)
        if out is not None:
            story.figure().save(out)
            typer.echo(f"written to {out}", err=True)
