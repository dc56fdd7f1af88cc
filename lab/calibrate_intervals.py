"""`servesim calibrate intervals`: error bars from measured cells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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

    With --judge, show how often the intervals of left-out servers, models, versions and GPUs held.
    """
    import datetime
    import json

    from servesim.intervals.case import METRICS
    from servesim.run.result_files import write_text
    from servesim_lab.intervals.coverage import judged, rounded
    from servesim_lab.intervals.fit import Data, fit
    from servesim_lab.intervals.pairs import judge_pairs
    from servesim_lab.intervals.residuals import read_measured

    today = date if date is not None else datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    document = fit(scores, today)
    if judge:
        cells = read_measured(scores)
        document["judged"] = judged(Data.of(cells))
        document["judged_pairs"] = rounded(
            {what: judge_pairs(cells, what) for what in document["pairs"].get("folds", ())}
        )
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).replace(',"', ',\n"')
    write_text(out, f"{text}\n", "--out")
    on = document["fitted_on"]
    typer.echo(f"written to {out}: {on['cells']:,} cells of {on['deployments']:,} deployments")
    for kind, found in document.get("judged", {}).items():
        for metric, figures in found.items():
            better = f", Winkler {100 * figures['winkler_better']:+.0f} % better than one interval for all"
            typer.echo(f"  {kind}, {metric}: {_judged(figures)}{better}")
    for what, found in document.get("judged_pairs", {}).items():
        for metric in METRICS:
            typer.echo(f"  ratios of pairs, {what} left out, {metric}: {_judged(found[metric])}")
        shares = {name: found["cheaper"][name] for name in ("right_of_all", "decided", "right_of_decided")}
        told = ", ".join(f"{name.replace('_', ' ')} {_share(figure)}" for name, figure in shares.items())
        typer.echo(f"  which of a pair is cheaper, {what} left out: {told}")


def _judged(figures: Mapping[str, Any]) -> str:
    return f"coverage {_share(figures['coverage'])}, half-width {100 * figures['half_width']:.0f} %"


def _share(figure: Mapping[str, float | None]) -> str:
    if figure["value"] is None:
        return "not known"
    ends = [f"{100 * end:.0f}" for end in (figure["low"], figure["high"]) if end is not None]
    return f"{100 * figure['value']:.0f} %{f' [{ends[0]}, {ends[1]}]' if ends else ''}"
