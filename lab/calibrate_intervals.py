"""`servesim calibrate intervals`: error bars from measured cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.errors import UserError
from servesim.intervals.case import METRICS

INTERVALS_EXAMPLES = """
\b
Examples:
  servesim accuracy my-cells.csv --out score
  servesim calibrate intervals score --out my-intervals.json
  servesim calibrate intervals score --laboratory gpustack=score-of-gpustack --out my-intervals.json
"""


def intervals(
    scores: Annotated[
        list[Path], typer.Argument(metavar="SCORE...", help="Output folder of servesim accuracy, or its cells.csv.")
    ],
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    date: Annotated[str | None, typer.Option(help="Date of the statistics. [default: today]")] = None,
    laboratory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SCORE",
            help="Score of a laboratory that is not used to fit the terms. The bars must also cover it. Repeatable.",
        ),
    ] = None,
    judge: Annotated[bool, typer.Option(help="Also judge the bars on held-out cells. This takes minutes.")] = False,
) -> None:
    """Fit error bars to measured cells.

    The bars of an unmeasured server are widened by the amount that the held-out results of every laboratory require.
    With --judge, the command shows how often the intervals contained the values of held-out servers, models,
    versions and GPUs.
    """
    import datetime
    import json

    from servesim.run.result_files import write_text
    from servesim_lab.intervals.coverage import judged, rounded
    from servesim_lab.intervals.doubts import doubts
    from servesim_lab.intervals.fit import Data, files_of, fit
    from servesim_lab.intervals.laboratories import laboratories, named
    from servesim_lab.intervals.pairs import judge_pairs
    from servesim_lab.intervals.residuals import kept, read_measured

    today = date if date is not None else datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    document = fit(scores, today)
    cells = read_measured(scores)
    document["doubts"] = doubts(Data.of(cells))
    others = [(name, Path(path)) for name, path in map(_named, laboratory or ())]
    counts = kept(scores) + Counter({name: kept([path]).total() for name, path in others})
    given = [cell for name, path in others for cell in named(read_measured([path]), name)]
    if left_out := laboratories(cells, given, counts):
        document["laboratories"] = left_out | {"files": files_of([path for _, path in others])}
    if judge:
        document["judged"] = judged(Data.of(cells))
        document["judged_pairs"] = rounded(
            {what: judge_pairs(cells, what) for what in document["pairs"].get("folds", ())}
        )
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).replace(',"', ',\n"')
    write_text(out, f"{text}\n", "--out")
    on = document["fitted_on"]
    typer.echo(f"written to {out}: {on['cells']:,} cells of {on['deployments']:,} deployments")
    for line in _of_laboratories(document.get("laboratories", {})):
        typer.echo(line)
    told = document["doubts"]
    typer.echo(
        f"  doubtful cases: {100 * told['found']:.0f} % of the cells whose {told['of']} is over "
        f"{100 * told['worst']:.0f} % off, and {100 * told['false_alarms']:.0f} % of the others"
    )
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


def _named(text: str) -> tuple[str, str]:
    """Return name and path in `--laboratory NAME=SCORE`."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise UserError(f"--laboratory {text}: must be NAME=SCORE, such as gpustack=score")
    return name, path


def _of_laboratories(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each laboratory left out, and one for each metric over all of them."""
    for row in found.get("left_out", ()):
        bars = [f"{metric} {100 * row[metric]['inside']:.0f} %" for metric in METRICS] if row["with_bars"] else ["none"]
        median = 100 * math.expm1(row["errors"]["e2e"]["log_median"])
        yield (
            f"  {row['laboratory']} left out: {row['with_bars']} of {row['answered']} results have bars, inside "
            f"{', '.join(bars)}; E2E simulated {median:+.0f} % in the median"
        )
    for crowd, by_metric in found.get("wider", {}).items():
        for metric, ends in by_metric.items():
            of = [f"{end} end {ends[end]:.2f} times as far{of and f' ({of})'}" for end, of in ends["of"].items()]
            yield f"  unseen laboratory, {crowd} in flight, {metric}: {', '.join(of)}"
    for metric, share in found.get("coverage", {}).items():
        yield f"  laboratories left out of the widening, too, {metric}: {_share(share)} inside"


def _judged(figures: Mapping[str, Any]) -> str:
    return f"coverage {_share(figures['coverage'])}, half-width {100 * figures['half_width']:.0f} %"


def _share(figure: Mapping[str, float | None]) -> str:
    if figure["value"] is None:
        return "not known"
    ends = [f"{100 * end:.0f}" for end in (figure["low"], figure["high"]) if end is not None]
    return f"{100 * figure['value']:.0f} %{f' [{ends[0]}, {ends[1]}]' if ends else ''}"
