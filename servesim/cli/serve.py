"""`servesim serve`: an OpenAI-compatible server whose answers come in simulated time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import UserError
from servesim.sentinels import COMMON

if TYPE_CHECKING:
    from servesim.live.driver import Driver
    from servesim.live.recording import Recording
    from servesim.live.watcher import Watcher
    from servesim.run.scenario import Scenario

EVENTS = "Events over ZMQ"
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
ADMIN_TOKEN = "SERVESIM_ADMIN_TOKEN"
"""Environment variable that holds the token of operators; an option would show it to all users of the machine."""


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
    kv_events: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="Publish KV-cache events, such as at tcp://127.0.0.1:5557 (replica i: port + i).",
            rich_help_panel=EVENTS,
        ),
    ] = None,
    kv_events_topic: Annotated[str, typer.Option(help="Topic of KV events.", rich_help_panel=EVENTS)] = "",
    kv_events_replay: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="Send missed KV events again, such as at tcp://127.0.0.1:6557.",
            rich_help_panel=EVENTS,
        ),
    ] = None,
    forward_metrics: Annotated[
        str | None,
        typer.Option(
            metavar="ENDPOINT",
            help="Publish metrics of each step, such as at tcp://127.0.0.1:20380 (replica i: port + i).",
            rich_help_panel=EVENTS,
        ),
    ] = None,
) -> None:
    """Answer requests of OpenAI's API in simulated time."""
    from servesim.live.server import check_installed, lengths

    check_installed()
    from servesim.live.app import App  # what follows is of the extra
    from servesim.live.driver import Driver
    from servesim.live.events.forward import ForwardMetrics
    from servesim.live.events.kv import KVEvents
    from servesim.live.information import Information
    from servesim.live.metrics.dialects import dialect_of
    from servesim.live.metrics.watcher import Metrics
    from servesim.live.recording import Recording, check_record
    from servesim.live.server import serve as run_server
    from servesim.run.scenario import Scenario

    if not 0.001 <= speed <= 1000:
        raise UserError(f"--speed is {speed:g} but must be from 0.001 to 1000")
    if record is not None:
        check_record(record)
    if kv_events is None and (kv_events_topic or kv_events_replay is not None):
        raise UserError("--kv-events-topic and --kv-events-replay require --kv-events")
    asked = Scenario.of(_settings(scenario, context.obj))
    draw = lengths(output, asked.seed)
    recording = Recording() if record is not None else None
    model = served_model_name or str(asked.model)
    first: list[Driver] = []  # the engine that is recorded
    watchers: list[Watcher] = [Information(model, asked), Metrics(model, dialect_of(asked))]
    if kv_events is not None:
        watchers.append(KVEvents(asked, kv_events, topic=kv_events_topic, replay=kv_events_replay))
    if forward_metrics is not None:
        watchers.append(ForwardMetrics(asked, forward_metrics))
    operators = _operators(asked)
    watchers += operators

    def make() -> Driver:
        own = None if first else recording
        made = Driver(asked, speed=speed, recording=own, watchers=watchers, operated=bool(operators))
        first[:] = first or [made]
        return made

    def ready(address: str) -> None:
        for line in filter(None, [watcher.announced() for watcher in watchers]):
            typer.echo(line)
        typer.echo(f"serving {model} at {address} (press Ctrl-C to stop)")

    run_server(App(make, draw, model, watchers), host, port, ready)
    if recording is not None and record is not None:
        operations = first[0].operations
        _write(recording, record, asked, operations.done if operations is not None else ())


def _operators(asked: Scenario) -> list[Watcher]:
    """Return the pages of operators, if the environment has a token for them and they can act on the deployment."""
    from servesim.live.deployment import why_not_operated

    token = os.environ.get(ADMIN_TOKEN)
    if token is None:
        return []
    if reason := why_not_operated(asked):
        typer.echo(f"note: no pages for operators, though {ADMIN_TOKEN} is set: {reason}", err=True)
        return []
    from servesim.live.admin import Admin

    return [Admin(token)]


def _write(recording: Recording, record: Path, asked: Scenario, done: Sequence[str]) -> None:
    """Write what was recorded, and the scenario that replays it."""
    from servesim.live.recording import names_code, save_replay

    if not len(recording):
        typer.echo(f"note: no request arrived, so {record} was not written", err=True)
        return
    recording.save(record)
    replay = save_replay(asked, record, done)
    run = f"servesim run {replay}{' --trust' if names_code(asked) else ''}"
    typer.echo(f"{len(recording):,} requests recorded in {record}; the same run offline: {run}")


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
