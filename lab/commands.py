"""Commands of the laboratory, which `servesim` finds through the entry point `servesim.commands`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servesim.cli.options import TrustCommand
from servesim_lab.calibrate_intervals import INTERVALS_EXAMPLES, intervals
from servesim_lab.reproduce import EXAMPLES, reproduce

if TYPE_CHECKING:
    import typer


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the laboratory's commands."""
    groups[""].command(epilog=EXAMPLES, cls=TrustCommand)(reproduce)
    groups["calibrate"].command(epilog=INTERVALS_EXAMPLES)(intervals)
