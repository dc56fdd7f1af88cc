"""`servesim calibrate intervals`: error bars from measured cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INTERVALS_EXAMPLES = """
\b
Examples:
  servesim accuracy my-cells.csv --out score
  servesim calibrate intervals score --out my-intervals.json
"""


def intervals(
    scores: Annotated[
        list[Path], typer.Argument(metavar="SCORE...", help="What servesim accuracy --out wrote, or its cells.csv.")
    ],
    out: Annotated[Path, typer.Option(help="JSON file of the statistics.")],
    date: Annotated[str | None, typer.Option(help="Date the statistics carry. [default: today]")] = None,
    judge: Annotated[bool, typer.Option(help="Judge on left-out cells too: minutes.")] = False,
) -> None:
    """Fit error bars to measured cells.

    How often intervals of left-out servers, models, versions and GPUs held is shown with --judge."""
    import datetime
    import json

    from servesim.experiments.intervals.coverage import judged
    from servesim.experiments.intervals.fit import Data, fit
    from servesim.experiments.intervals.residuals import read_measured
    from servesim.run.result_files import write_text

    today = date if date is not None else datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    document = fit(scores, today)
    if judge:
        document["judged"] = judged(Data.of(read_measured(scores)))
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).replace(',"', ',\n"')
    write_text(out, f"{text}\n", "--out")
    on = document["fitted_on"]
    typer.echo(f"written to {out}: {on['cells']:,} cells of {on['deployments']:,} deployments")
    for kind, found in document.get("judged", {}).items():
        for metric, figures in found.items():
            c = figures["coverage"]
            ends = "" if c["low"] is None else f" [{100 * c['low']:.0f}, {100 * c['high']:.0f}]"
            typer.echo(
                f"  {kind}, {metric}: coverage {100 * c['value']:.0f} %{ends}, half-width "
                f"{100 * figures['half_width']:.0f} %, Winkler {100 * figures['winkler_better']:+.0f} % "
                "better than one interval for all"
            )
