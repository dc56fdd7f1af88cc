"""`servesim trace`: inspection and conversion of trace files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from servesim.workload.trace import Trace

trace_app = typer.Typer(help="Inspect, convert and fetch traces.")

INSPECT_EXAMPLES = """
\b
Examples:
  servesim trace inspect preset:mooncake-conversation --requests 500
  servesim trace inspect synth:rate=5,prompt=800,output=200 --shape repeat:times=2
"""
CONVERT_EXAMPLES = """
\b
Examples:
  servesim trace convert trace.csv trace.parquet --to parquet
  servesim trace convert preset:mooncake-conversation twin.jsonl --to mooncake --requests 100
"""

Shape = Annotated[
    list[str] | None, typer.Option(metavar="STEP", help="Shape the trace, such as thin:keep=0.5. Repeatable.")
]
Columns = Annotated[
    str | None,
    typer.Option(help="Column names of a log: arrival='Request Time',prompt=in,output=out[,unit=us]."),
]


@trace_app.callback(invoke_without_command=True)
def help_alone(context: typer.Context) -> None:
    """Print the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@trace_app.command(epilog=INSPECT_EXAMPLES)
def inspect(
    trace: Annotated[
        str, typer.Argument(metavar="FILE", help="Trace or log (- is standard input), preset:NAME or synth:....")
    ],
    block_size: Annotated[int, typer.Option(help="Tokens per KV block for the ideal hit rate.")] = 16,
    requests: Annotated[int | None, typer.Option(help="Inspect only the first N requests.")] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort the file's rows by arrival time.")] = False,
    timing: Annotated[str | None, typer.Option(help="Timing of conversations: think, original or open.")] = None,
    columns: Columns = None,
    shape: Shape = None,
    seed: Annotated[int, typer.Option(help="Seed for synthetic traces, presets and shapes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show rate, burstiness, lengths and sessions of a trace.

    The command also shows the hit rate of an infinite prefix cache.
    """
    from servesim.traces.inspect import inspect as inspect_trace

    summary = inspect_trace(_opened(trace, requests, seed, sort, timing, columns, shape), block_size=block_size)
    if as_json:
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(summary.to_dict()))
    else:
        from servesim.cli.summary import print_trace

        print_trace(summary)


@trace_app.command(epilog=CONVERT_EXAMPLES)
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="Trace file, preset:NAME or synth:....")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="File to write.")],
    to: Annotated[str, typer.Option("--to", help="Format to write. An unknown name lists the formats.")],
    requests: Annotated[int | None, typer.Option(help="Convert only the first N requests.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for synthetic traces, presets and shapes.")] = 0,
    sort: Annotated[bool, typer.Option("--sort", help="Sort the file's rows by arrival time.")] = False,
    timing: Annotated[str | None, typer.Option(help="Timing of conversations: think, original or open.")] = None,
    columns: Columns = None,
    shape: Shape = None,
    lossy: Annotated[bool, typer.Option("--lossy", help="Drop data that the format cannot represent.")] = False,
) -> None:
    """Write a trace in a different format."""
    from servesim.traces import save_trace

    trace = _opened(source, requests, seed, sort, timing, columns, shape)
    save_trace(trace, target, to, lossy=lossy)
    typer.echo(f"{target}: {len(trace)} requests, format {to}")


@trace_app.command("list", epilog="Example: servesim trace list")
def list_traces(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List presets, public traces and formats."""
    from servesim.traces import preset_names
    from servesim.traces.catalogue import catalogue
    from servesim.traces.formats import formats

    if as_json:
        from servesim.cli.known import print_json

        print_json(
            {
                "presets": list(preset_names()),
                "public": [
                    {"name": one.name, "about": one.about, "licence": one.licence, "bytes": one.size, "url": one.url}
                    for one in catalogue().values()
                ],
                "formats": [
                    {"name": name, "about": module.ABOUT, "writes": hasattr(module, "write")}
                    for name, module in formats().items()
                ],
            }
        )
        return
    typer.echo("presets (preset:NAME), fitted twins of public traces:")
    for name in preset_names():
        typer.echo(f"  {name}")
    typer.echo("public traces (servesim trace fetch NAME):")
    for entry in catalogue().values():
        size = f"{entry.size:,} bytes" if entry.size is not None else "size unknown"
        typer.echo(f"  {entry.name:<22}{entry.about}; {entry.licence}, {size}")
    typer.echo("formats, detected from the content of a file:")
    for name, module in formats().items():
        typer.echo(f"  {name:<22}{module.ABOUT}{'' if hasattr(module, 'write') else ' (read only)'}")


@trace_app.command(epilog="Example: servesim trace fetch mooncake-conversation")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name listed by `servesim trace list`.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. [default: its original name, in the current folder]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print its location without downloading it.")] = False,
) -> None:
    """Download and verify a public trace.

    The command prints its location, license, size and checksum.
    """
    from servesim.traces.catalogue import entry_of
    from servesim.traces.catalogue import fetch as download

    entry = entry_of(name)
    size = f"{entry.size:,} bytes" if entry.size is not None else "not known"
    note = f" ({entry.note})" if entry.note else ""
    for key, value in (
        ("source", entry.url),
        ("licence", entry.licence),
        ("cite", entry.citation),
        ("size", size),
        ("sha256", f"{entry.sha256}{note}"),
    ):
        typer.echo(f"{key:<9}{value}")
    if not dry_run:
        typer.echo(f"written  {download(entry, out or Path(entry.file))}")


def _opened(
    spec: str,
    requests: int | None,
    seed: int,
    sort: bool,
    timing: str | None,
    columns: str | None,
    steps: list[str] | None,
) -> Trace:
    from servesim.sentinels import NOTHING
    from servesim.traces import open_trace, shape

    options: dict[str, Any] = {"sort": True} if sort else {}
    options |= {"timing": timing} if timing not in (None, "", "auto") else {}
    options |= {"columns": columns} if columns and columns not in NOTHING else {}
    trace: Trace = shape(open_trace(spec, requests=requests, seed=seed, **options), steps or (), seed)
    return trace
