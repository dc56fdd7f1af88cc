"""`servesim calibrate`: host terms and kernel tables from measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servesim.cli.calibrate_acceptance import ACCEPTANCE_EXAMPLES, acceptance
from servesim.cli.calibrate_all import ALL_EXAMPLES, all_
from servesim.cli.calibrate_engine import ENGINE_EXAMPLES, engine
from servesim.cli.calibrate_profile import PROFILE_EXAMPLES, profile
from servesim.cli.calibrate_steps import STEPS_EXAMPLES, steps
from servesim.cli.trace import help_alone

if TYPE_CHECKING:
    from servesim.calibrate.accuracy import HeldOut

calibrate_app = typer.Typer(
    help="Measure, fit and import step costs.", callback=help_alone, invoke_without_command=True
)

calibrate_app.command("all", epilog=ALL_EXAMPLES)(all_)
calibrate_app.command(epilog=PROFILE_EXAMPLES)(profile)
calibrate_app.command(epilog=STEPS_EXAMPLES)(steps)
calibrate_app.command(epilog=ENGINE_EXAMPLES)(engine)
calibrate_app.command(epilog=ACCEPTANCE_EXAMPLES)(acceptance)

HOST_EXAMPLES = """
\b
Examples:
  servesim calibrate host recorded/ --out vllm-0.23-h100.yaml
  servesim run --trace preset:azure-conv-2023 --model qwen3-14b --gpu h100 --host vllm-0.23-h100.yaml
"""


@calibrate_app.command(epilog=HOST_EXAMPLES)
def host(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Recorded runs and step logs of one engine, model and GPU.")
    ],
    out: Annotated[Path | None, typer.Option(help="YAML file to write. [default: print it]")] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(help='Name of a run to exclude ("steps" means the step logs). Repeatable.')
    ] = None,
) -> None:
    """Fit host terms, the overhead of an engine, to recorded steps."""
    import yaml

    from servesim.calibrate.host import fit_host
    from servesim.errors import UserError
    from servesim.run.result_files import write_text

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    text = yaml.safe_dump(fit_host(folder, leave_out or ()).to_dict(), sort_keys=False)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text, "--out")
    typer.echo(f"written to {out}")


REPORT_EXAMPLES = """
\b
Examples:
  servesim calibrate report tables -o tables.html
  servesim calibrate report tables --against h200 --against other-tables -o tables.html
"""


@calibrate_app.command(epilog=REPORT_EXAMPLES)
def report(
    folder: Annotated[Path, typer.Argument(metavar="TABLE", help="Folder of kernel tables.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Page to write.")],
    gpu: Annotated[str | None, typer.Option(help="GPU, for tables that do not specify one.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Tables to compare with: a shipped name or a folder. Repeatable. [default: the tables shipped for "
                "the GPU]"
            )
        ),
    ] = None,
) -> None:
    """Make one HTML page of kernel tables.

    The page shows coverage, repeat error, anomalies, and differences from other tables for the same GPU.
    """
    from servesim.reports.files import refuse_foreign
    from servesim.reports.table_page import table_html
    from servesim.run.result_files import write_text

    refuse_foreign(out)
    write_text(out, table_html(folder, gpu, against), "--out")
    typer.echo(f"written to {out}")


import_app = typer.Typer(
    help="Import kernel tables measured by other projects.", callback=help_alone, invoke_without_command=True
)
calibrate_app.add_typer(import_app, name="import")

LLMSERVINGSIM_EXAMPLES = """
\b
Examples:
  servesim calibrate import llmservingsim RTXPRO6000/Llama-3.1-8B/tp1 --out tables/
  servesim validate recorded/ --kernel-tables tables/
"""
VIDUR_EXAMPLE = "Example: servesim calibrate import vidur data/profiling --gpu a100 --out tables/"
AICONFIGURATOR_EXAMPLE = (
    "Example: servesim calibrate import aiconfigurator aiconfigurator_core.whl --system h200_sxm --out tables/"
)
CSV_EXAMPLES = """
\b
Examples:
  servesim calibrate import csv gemms.csv --op gemm --gpu my-card --out tables/
  servesim run --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h100 --kernel-tables tables/
"""
_OUT = typer.Option("--out", metavar="DIR", help="Folder to write the tables to.")


@import_app.command(epilog=LLMSERVINGSIM_EXAMPLES)
def llmservingsim(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Profile: a folder <GPU>/<model>/tp<N> of CSV files.")],
    out: Annotated[Path, _OUT],
) -> None:
    """Import profiles from LLMServingSim."""
    from servesim.calibrate.importers.llmservingsim import import_llmservingsim

    _imported(lambda: import_llmservingsim(folder, out), out)


@import_app.command(epilog=VIDUR_EXAMPLE)
def vidur(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of profiles: compute/ and network/.")],
    out: Annotated[Path, _OUT],
    gpu: Annotated[str | None, typer.Option(help="Name of the GPU in the profiles, such as a100.")] = None,
    network: Annotated[
        str | None, typer.Option(help=("Server on which the all-reduce times were measured, such as a100_dgx."))
    ] = None,
) -> None:
    """Import profiles from Vidur."""
    from servesim.calibrate.importers.vidur import import_vidur

    _imported(lambda: import_vidur(folder, out, gpu, network), out)


@import_app.command(epilog=AICONFIGURATOR_EXAMPLE)
def aiconfigurator(
    package: Annotated[Path, typer.Argument(metavar="PATH", help="Wheel or folder of the package.")],
    out: Annotated[Path, _OUT],
    system: Annotated[str, typer.Option(help="Name of the GPU in the package, such as h200_sxm.")],
    framework: Annotated[str, typer.Option(help="Engine whose kernels were measured.")] = "vllm",
    version: Annotated[
        str | None,
        typer.Option(
            help="Older version of the engine. PATH must be a wheel of aiconfigurator up to 0.6. [default: newest]"
        ),
    ] = None,
) -> None:
    """Import timings from the aiconfigurator-core package.

    With --version, the output folder replaces rows of the tables in the folder that contains it.
    """
    from servesim.calibrate.importers.aiconfigurator import import_aiconfigurator
    from servesim.calibrate.importers.aiconfigurator_older import import_older

    if version is not None:
        return _imported(lambda: import_older(package, system, framework, version, out), out)
    _imported(lambda: import_aiconfigurator(package, system, framework, out), out)


@import_app.command("csv", epilog=CSV_EXAMPLES)
def csv_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV file: one row per measured call.")],
    op: Annotated[str, typer.Option(help="Operator that was measured, such as gemm or attention_decode.")],
    out: Annotated[Path, _OUT],
    dtype: Annotated[str, typer.Option(help="Format of rows without a column dtype.")] = "bf16",
    gpu: Annotated[str, typer.Option(help="Name of the measured GPU, for the provenance.")] = "own",
) -> None:
    """Import times of one operator from a CSV file of your own.

    The columns are those of the operator and time_us, for example m, n, k and time_us for gemm. Rows of the same call
    are repeats.
    """
    from servesim.calibrate.importers.own import import_csv

    _imported(lambda: import_csv(file, op, out, dtype, gpu), out)


def _imported(convert: Callable[[], dict[str, int]], out: Path) -> None:
    """Run an importer and print what it wrote."""
    from servesim.errors import UserError

    try:
        written = convert()
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror}") from error
    for name, rows in written.items():
        typer.echo(f"{out / name}: {rows:,} rows")


LEFT_OUT_EXAMPLES = """
\b
Examples:
  servesim calibrate left-out h200
  servesim calibrate left-out data/profiling/compute/a100 --json errors.json
"""


@calibrate_app.command(epilog=LEFT_OUT_EXAMPLES)
def left_out(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help=("Shipped tables (h200), a folder of tables, or a folder of Vidur's CSV files.")
        ),
    ],
    gpu: Annotated[str | None, typer.Option(help="Measured GPU. [default: from the tables]")] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")] = None,
) -> None:
    """Report prediction errors for held-out rows of kernel tables.

    Each split holds out other rows: a random fifth of the rows, a fifth of the curves (all rows of a shape), all
    points of each curve except every second or fourth point, or the largest points of each curve.
    """
    from servesim.calibrate.accuracy import accuracy as errors_of
    from servesim.calibrate.accuracy import open_tables, suspicious
    from servesim.run.result_files import to_json, write_text

    tables, measured_on = open_tables(table, gpu)
    errors, warnings = list(errors_of(tables, measured_on)), suspicious(tables, measured_on)
    if out is not None:
        figures = {"errors": [asdict(e) for e in errors], "warnings": warnings}
        write_text(out, to_json({"table": table, "gpu": measured_on.name, **figures}), "--json")
    print_errors(errors)
    for line in warnings:
        typer.echo(f"warning: {line}")


calibrate_app.command(
    "accuracy", hidden=True, help="Former name of left-out.", epilog="Example: servesim calibrate accuracy h200"
)(left_out)


def print_errors(errors: list[HeldOut]) -> None:
    """Print a line for each operator and split."""
    from rich.table import Table

    from servesim.cli.console import open_console

    table = Table("operator", "left out", box=None, header_style="bold")
    for name in ("rows", "median", "mean", "p95", "bias"):
        table.add_column(name, justify="right")
    for e, before in zip(errors, [None, *errors], strict=False):
        name = f"{e.operator} {e.dtype}"
        first = before is None or name != f"{before.operator} {before.dtype}"
        figures = [f"{100 * value:.2f} %" for value in (e.median, e.mean, e.p95)]
        table.add_row(name if first else "", e.split, f"{e.held_out:,}", *figures, f"{100 * e.bias:+.2f} %")
    open_console().print(table)
