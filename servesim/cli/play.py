"""`servesim play`: playback of a small run's KV memory, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servesim.cli.gate import Quiet
from servesim.errors import UserError
from servesim.sentinels import COMMON

MOST_GRIDS = 6
PLAY_EXAMPLES = """
\b
Examples:
  servesim play scenario.yaml --requests 30 --scheduler static,vllm --engine.num-gpu-blocks 160
  servesim play scenario.yaml --requests 30 --kv contiguous,paged --engine.num-gpu-blocks 160 --engine.max-model-len 512
  servesim play scenario.yaml --requests 30 --kv prefix-hash --shape share:tokens=96 --engine.num-gpu-blocks 160

A setting may list several values, separated by commas. Every combination is one grid. All grids share a clock.
"""


def play(
    context: typer.Context,
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="YAML file. Options and --set override it.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Page to write.", rich_help_panel=COMMON)
    ] = Path("play.html"),
    quiet: Quiet = False,
) -> None:
    """Play back KV memory, block by block.

    The page shows a grid of blocks, colored by request, the tree of a prefix cache, and the
    requests that run together. Several values of an option give several grids, such as paged next to contiguous. Runs
    may have up to 2,048 blocks, 400 requests and 3,000 steps.
    """
    from servesim.cli.experiments import axes_of
    from servesim.cli.report import page_file
    from servesim.cli.serving import prepared
    from servesim.experiments.axes import load_grid, product
    from servesim.reports.files import writing
    from servesim.reports.playback import play as watch
    from servesim.reports.playback_page import playback_page

    page_file(out)
    scenarios, given = prepared("play", [str(scenario)] if scenario is not None else [], context.obj, axes_of)
    settings, axes = load_grid(scenarios[0] if scenarios else None, given)
    variants = product(settings, axes)
    if len(variants) > MOST_GRIDS:
        raise UserError(f"play: {len(variants)} combinations do not fit on a page; at most {MOST_GRIDS} fit")
    page = playback_page([watch(variant.settings, variant.label) for variant in variants]).html()
    with writing(out) as file:
        file.write(page)
    if not quiet:
        typer.echo(f"written to {out}", err=True)
