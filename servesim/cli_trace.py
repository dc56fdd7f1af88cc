"""`servesim trace`: look at trace files and convert them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

trace_app = typer.Typer(help="Look at traces and convert them.", no_args_is_help=False)


@trace_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@trace_app.command(epilog="Example: servesim trace inspect preset:mooncake-conversation")
def inspect(
    trace: Annotated[str, typer.Argument(metavar="FILE", help="Trace file, preset:NAME or synth:....")],
    block_size: Annotated[int, typer.Option(help="Tokens per KV block for the ideal hit rate.")] = 16,
    requests: Annotated[int | None, typer.Option(help="Look at the first so many requests.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Order the file's rows by arrival time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Requests, span, rate, burstiness, lengths and the hit rate an infinite prefix cache would have."""
    from servesim.traces import open_trace
    from servesim.traces.inspect import inspect as inspect_trace

    options: dict[str, Any] = {"sort": True} if sort else {}
    summary = inspect_trace(open_trace(trace, requests=requests, **options), block_size=block_size)
    if as_json:
        from servesim.result_files import to_json

        sys.stdout.write(to_json(summary.to_dict()))
    else:
        from servesim.cli_summary import print_trace

        print_trace(summary)


@trace_app.command(epilog="Example: servesim trace convert azure.csv azure.parquet --to parquet")
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Trace file, preset:NAME or synth:....")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    to: Annotated[str, typer.Option("--to", help="Format to write; an unknown one lists them.")],
    requests: Annotated[int | None, typer.Option(help="The first so many requests.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic traces and presets.")] = 0,
    sort: Annotated[bool, typer.Option("--sort", help="Order the file's rows by arrival time.")] = False,
    lossy: Annotated[bool, typer.Option("--lossy", help="Drop what the format cannot hold.")] = False,
) -> None:
    """Write a trace in another format."""
    from servesim.traces import open_trace, save_trace

    options: dict[str, Any] = {"sort": True} if sort else {}
    trace = open_trace(source, requests=requests, seed=seed, **options)
    save_trace(trace, target, to, lossy=lossy)
    typer.echo(f"{target}: {len(trace)} requests, format {to}")
