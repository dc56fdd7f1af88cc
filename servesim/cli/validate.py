"""`servesim validate`: comparison of recorded servers with simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from servesim.experiments.validate import Comparison, Figures


def validate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of recorded runs, or the file of one run.")],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Host terms: a shipped name or a YAML file. [default: by engine version]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, for runs that do not specify one.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, for runs that do not specify one.")] = None,
    num_gpu_blocks: Annotated[
        int | None,
        typer.Option(
            min=2, help="Number of KV blocks, for servers that do not report it. [default: from the memory model]"
        ),
    ] = None,
    kernel_tables: Annotated[
        Path | None, typer.Option(help="Folder of kernel tables to use instead of the shipped ones.")
    ] = None,
) -> None:
    """Replay runs recorded on real servers and report the error.

    The command prints one table per run, with the measured values and the values simulated with and without host terms.
    """
    from servesim.cost.host import HostTerms
    from servesim.experiments.validate import validate as run_all
    from servesim.sentinels import NOTHING

    kernel_tables = None if str(kernel_tables) in NOTHING else kernel_tables
    terms = HostTerms.load(host) if host is not None else None
    found = run_all(folder, host=terms, model=model, gpu=gpu, tables=kernel_tables, num_blocks=num_gpu_blocks)
    if json_file is not None:
        from servesim.run.result_files import to_json, write_text

        write_text(json_file, to_json({"runs": [c.to_dict() for c in found]}), "--json")
    print_comparisons(found)


def print_comparisons(found: list[Comparison]) -> None:
    """Print one table per run: measured values, simulated values with host terms and from kernels alone, errors, and
    noise between repeats."""
    from rich.table import Table

    from servesim.cli.console import open_console

    console = open_console()
    for c in found:
        server = c.run.server
        gpu = Path(server.gpu).name if server.gpu else None  # a data sheet's file name
        console.print(
            f"{c.run.name}: {server.model} on {server.tp} x {gpu}, {server.engine}, {len(c.run)} requests; "
            f"host terms: {c.host or 'none known'}",
            style="bold",
        )
        table = Table("ms", box=None, header_style="bold")
        for name in ("measured", "simulated", "error", "kernels only", "error", "repeats"):
            table.add_column(name, justify="right")
        for row in _rows(c):
            table.add_row(*row)
        console.print(table)
        if c.unpriced:
            console.print(f"  not replayed: {c.unpriced}")
        for note in c.notes:
            console.print(f"  note: {note}")
        console.print()


def _rows(c: Comparison) -> list[list[str]]:
    """Return rows of label, measured, simulated, error, zero-shot, its error, noise."""
    zero = c.zero_shot or {}
    rows = []
    for metric in ("ttft", "tpot", "e2el"):
        for statistic in ("mean", "p50", "p99"):
            pick = (metric, statistic)
            values = (c.measured, c.simulated, zero.get("simulated"))
            measured, simulated, plain = (_number(_at(v, pick)) for v in values)
            error, its = _percent(_at(c.error, pick)), _percent(_at(zero.get("error"), pick))
            noise = _percent(_at(c.noise, pick), sign=False)
            rows.append([f"{metric} {statistic}", measured, simulated, error, plain, its, noise])
        sizes = [_percent(_at(e, (metric, "per_request")), sign=False) for e in (c.error, zero.get("error"))]
        rows.append([f"{metric} per req.", "", "", sizes[0], "", sizes[1], ""])
    last = ("output_throughput",)
    rows.append(
        [
            "output tokens/s",
            _number(_at(c.measured, last)),
            _number(_at(c.simulated, last)),
            _percent(_at(c.error, last)),
            _number(_at(zero.get("simulated"), last)),
            _percent(_at(zero.get("error"), last)),
            _percent(_at(c.noise, last), sign=False),
        ]
    )
    return rows


def _at(figures: Figures | None, keys: tuple[str, ...]) -> Any:
    value: Any = figures
    for key in keys:
        value = value.get(key) if value is not None else None
    return value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


def _percent(value: float | None, sign: bool = True) -> str:
    return "" if value is None else f"{100 * value:+.2f} %" if sign else f"{100 * value:.2f} %"
