"""Commands that other packages add through the entry-point group `servesim.commands`. If the laboratory is not
installed, its commands tell the user where to find it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

import typer

from servesim.errors import UserError

LABORATORY = {("", "reproduce"): "Rerun published claims.", ("calibrate", "intervals"): "Fit error bars."}
"""Commands of lab/, by group and name, with their help."""


def add_commands(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of installed packages. `groups`: Typer apps, keyed by the word that precedes their commands
    (empty for the root). An entry point is a function that takes these groups and returns nothing."""
    for entry in sorted(entry_points(group="servesim.commands"), key=lambda entry: entry.name):
        try:
            entry.load()(groups)
        except Exception as error:  # package incompatible with this servesim: other commands still work
            typer.echo(f"note: cannot load the commands of {entry.value}: {type(error).__name__}: {error}", err=True)
    for (group, name), help_ in LABORATORY.items():
        known = {each.name or getattr(each.callback, "__name__", "") for each in groups[group].registered_commands}
        if name not in known:
            groups[group].command(name, help=help_, context_settings={"ignore_unknown_options": True})(_missing)


def _missing(words: list[str] | None = typer.Argument(None, hidden=True)) -> None:  # noqa: B008  # as typer has it
    raise UserError(
        "this command is part of servesim-lab, which the wheel does not include: in a checkout, make run installs both"
    )
