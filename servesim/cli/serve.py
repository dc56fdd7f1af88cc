"""`servesim serve`: an OpenAI-compatible server whose answers come in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.errors import UserError
from servesim.sentinels import COMMON

SERVE_EXAMPLES = """
\b
Examples:
  servesim serve --model llama-3.1-8b --gpu h100
  servesim serve --model llama-3.1-8b --gpu h100 --replicas 2 --router smg-cache-aware --port 8000
  servesim serve scenario.yaml --speed 0.1 --record seen.jsonl
  servesim serve --model qwen3-14b --gpu h200 --scheduler my_policy.py:MyScheduler --output 'lognormal(p50=200,p95=900)'

Requires the serve extra: pip install 'servesim[serve]'. Press Ctrl-C to stop.
"""
OF_TRACES = (
    "trace",
    "requests",
    "skip",
    "rate",
    "shape",
    "stream",
    "sort",
    "timing",
    "spread_ticks",
    "columns",
    "clients",
)
"""Settings of what `run` sends, which a server does not."""


def serve(
    context: typer.Context,
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="YAML file. Options and --set override it.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on (host terms: --set host=TERMS).", rich_help_panel=COMMON)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port, or 0 for a free one.", rich_help_panel=COMMON)
    ] = 8000,
    speed: Annotated[
        float, typer.Option(help="Simulated seconds per second.", rich_help_panel=COMMON, show_default=True)
    ] = 1.0,
    output: Annotated[
        str,
        typer.Option(
            metavar="LENGTHS",
            help="Lengths of answers, as for synth traces.",
            rich_help_panel=COMMON,
        ),
    ] = "lognormal(p50=200,p95=900)",
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="When the server stops, write a trace (.jsonl).", rich_help_panel=COMMON),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in answers.", rich_help_panel=COMMON)
    ] = None,
) -> None:
    """Answer requests of OpenAI's API in simulated time."""
    from servesim.live.app import App
    from servesim.live.driver import Driver
    from servesim.live.recording import Recording
    from servesim.live.server import check_installed, lengths
    from servesim.live.server import serve as run_server
    from servesim.run.scenario import Scenario

    check_installed()
    if not 0.001 <= speed <= 1000:
        raise UserError(f"--speed is {speed:g} but must be from 0.001 to 1000")
    if record is not None and (record.exists() or not record.absolute().parent.is_dir()):
        raise UserError(f"--record {record}: must be a new file in an existing directory")
    asked = Scenario.of(_settings(scenario, context.obj))
    draw = lengths(output, asked.seed)
    recording = Recording() if record is not None else None
    drivers: list[Driver] = []

    def make() -> Driver:
        drivers.append(Driver(asked, speed=speed, recording=None if drivers else recording))
        return drivers[-1]

    app = App(make, draw, served_model_name or str(asked.model))
    run_server(app, host, port, lambda address: typer.echo(f"serving {app.model} at {address} (press Ctrl-C to stop)"))
    if recording is not None and record is not None:
        if not len(recording):
            typer.echo(f"note: no request arrived, so {record} was not written", err=True)
            return
        recording.save(record)
        typer.echo(f"{len(recording):,} requests recorded in {record}")


def _settings(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the deployment; those of what `run` sends are named on stderr and left out."""
    from servesim.cli.run import settings_over
    from servesim.cli.serving import save, tell_unread, under_commands
    from servesim.run.setting_names import load_settings

    saved = given.pop("save_scenario", None)
    base = under_commands([load_settings(file, given) if file is not None else {}], given, "run")
    tell_unread([file] if file is not None else [])
    settings = settings_over(base[0], given)
    save([(settings, {})], saved)
    unused = [key for key in OF_TRACES if settings.pop(key, None) is not None]
    if unused:
        typer.echo(f"note: without effect, because clients send the requests: {', '.join(unused)}", err=True)
    return {**settings, "trace": "object:live"}
