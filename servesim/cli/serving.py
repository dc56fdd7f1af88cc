"""`--serve`, `--save-scenario` and `--trace -`: processing before a command runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from servesim.contracts.warn import Warn
from servesim.errors import UserError


def under_commands(scenarios: Sequence[dict[str, Any]], given: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """Return the scenarios with the settings of the commands in --serve, which is removed from `given`. There is one
    command for all scenarios, or several if `compare` is run without a scenario. Flags that have no effect here are
    listed on stderr."""
    from servesim.run.serve_command import merged, served

    commands = [(text, served(text).simulated()) for text in given.pop("serve", ())]
    if len(commands) > 1 and (command != "compare" or scenarios != [{}]):
        raise UserError("--serve: only compare accepts several commands, and only without a scenario")
    for number, (text, found) in enumerate(commands, start=1):
        if len(commands) > 1:
            typer.echo(f"scenario {number}: {' '.join(text.split())}", err=True)
        for note in found.notes():
            typer.echo(f"{'warning' if isinstance(note, Warn) else 'note'}: {note}", err=True)
    if len(commands) > 1:
        return [found.settings for _, found in commands]
    return [merged(scenario, commands[0][1].settings) for scenario in scenarios] if commands else list(scenarios)


def tell_unread(files: Sequence[str | Path]) -> None:
    """Name the parts of deployment files that were not understood, in one line per file on stderr."""
    from servesim.run.deployment_file import unread_note

    for file in files:
        if note := unread_note(file):
            typer.echo(f"warning: {note}", err=True)


def prepared(
    command: str, files: Sequence[str], given: dict[str, Any], axes_of: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the scenarios and axes of an experiment. Commands are merged into the scenarios, the scenario is saved,
    and standard input is read once, here, since the runs are separate processes."""
    from servesim.experiments.axes import load_grid
    from servesim.run.setting_names import load_settings
    from servesim.traces import is_piped, load_trace

    saved = given.pop("save_scenario", None)
    tell_unread(files)
    scenarios: Sequence[Any] = files
    if "serve" in given:
        scenarios = under_commands([load_settings(file, given) for file in files] or [{}], given, command)
    elif any(Path(file).is_fifo() for file in files):
        scenarios = [load_settings(file, given) if Path(file).is_fifo() else file for file in files]
    axes = axes_of(given)
    if saved is not None:
        save([load_grid(scenario, axes) for scenario in scenarios] or [({}, axes)], saved)
    if is_piped(trace := axes.get("trace")):
        told = axes.pop("columns", None)
        axes["trace"] = load_trace(trace, **({"columns": told} if told else {}))
    return scenarios, axes


def save(grids: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], file: str | None) -> None:
    """Write settings and axes as one scenario or as a grid. Do nothing without a file."""
    if file is None:
        return
    import yaml

    from servesim.experiments.axes import axis_values, product
    from servesim.run.result_files import write_text
    from servesim.run.scenario import Scenario

    if len(grids) > 1:
        raise UserError("--save-scenario: only one scenario can be saved, but several are compared")
    settings, axes = grids[0]
    variants = product(settings, axes)
    text = Scenario.of(variants[0].settings).to_yaml()
    if len(variants) > 1:
        lists = {key: values for key, given in axes.items() if len(values := axis_values(key, given)) > 1}
        rest = product(settings, {key: given for key, given in axes.items() if key not in lists})[0].settings
        text = yaml.safe_dump({**rest, "axes": lists}, sort_keys=False)
    write_text(Path(file), text, "--save-scenario")
