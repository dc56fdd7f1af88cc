"""Commands that other packages add, by the entry-point group `servesim.commands`; those of the laboratory say where
they are if it is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

import typer

from servesim.errors import UserError

LABORATORY = {("", "reproduce"): "Rerun published claims.", ("calibrate", "intervals"): "Fit error bars."}
"""Commands of lab/, by group and name, with their help."""


def add_commands(groups: Mapping[str, typer.Typer]) -> None:
    """Add what is installed. `groups`: commands by the word before theirs, which is empty for those of the root. An
    entry point is a function of these groups; it returns nothing."""
    for entry in sorted(entry_points(group="servesim.commands"), key=lambda entry: entry.name):
        try:
            entry.load()(groups)
        except Exception as error:  # of a package that does not fit this servesim: the other commands go on
            typer.echo(f"note: cannot load the commands of {entry.value}: {type(error).__name__}: {error}", err=True)
    for (group, name), help_ in LABORATORY.items():
        known = {each.name or getattr(each.callback, "__name__", "") for each in groups[group].registered_commands}
        if name not in known:
            groups[group].command(name, help=help_, context_settings={"ignore_unknown_options": True})(_missing)


def _missing(words: list[str] | None = typer.Argument(None, hidden=True)) -> None:  # noqa: B008  # as typer has it
    raise UserError(
        "this command is part of servesim-lab, which the wheel does not include: in a checkout, make run installs both"
    )
