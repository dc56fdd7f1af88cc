"""`servesim explore`: a page on this machine whose sliders run simulations as they move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.sentinels import COMMON

if TYPE_CHECKING:
    from servesim.reports.explore.picture import Explorer

EXPLORE_EXAMPLES = """
\b
Examples:
  servesim explore
  servesim explore --trace preset:azure-conv-2023 --requests 2000 --model llama-3.1-8b --gpu h200 --slo ttft:500,tpot:50
  servesim explore scenario.yaml --rate 20 --port 8700
  servesim explore result

Requires the explore extra: pip install 'servesim[explore]'. Press Ctrl-C to stop.
"""
DEFAULT = {
    "trace": "preset:azure-conv-2023",
    "requests": 2000,
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "slo": "ttft:500,tpot:50",
}
"""Settings explored by default."""
PORT = 8642


def explore(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCENARIO|DIR", help="YAML file, or a result directory of run or sweep. Options override it."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1, or 0 for a free one.", rich_help_panel=COMMON)
    ] = PORT,
) -> None:
    """Serve a page whose sliders run simulations as they move.

    Only this machine can open the page. The page has controls for rate, GPUs, policies and limits. It can
    overlay runs, and it shows a command to copy.
    """
    from servesim.reports.explore.server import check_installed, serve

    check_installed()
    saved = context.obj.pop("save_scenario", None)
    explorer, page = opened(source, context.obj, saved)
    serve(explorer, port, page, lambda address: typer.echo(f"explore at {address} (press Ctrl-C to stop)"))


def opened(source: Path | None, given: dict[str, Any], saved: str | None = None) -> tuple[Explorer, dict[str, Any]]:
    """Return the explorer of a scenario or of a run's or sweep's directory, with the command line's settings applied,
    and the texts of its page. Raise UserError if it cannot be explored."""
    from servesim.cli.run import settings_over
    from servesim.cli.serving import save, under_commands
    from servesim.reports.explore.beginning import Beginning
    from servesim.reports.explore.picture import Explorer

    begun = Beginning.of(source, DEFAULT if "trace" not in given else {})
    under = under_commands([begun.settings], given, "run")[0]
    begun = begun.over(settings_over(under, given))
    save([(begun.settings, {})], saved)
    return Explorer(begun.settings, begun.controls, begun.words), begun.page
