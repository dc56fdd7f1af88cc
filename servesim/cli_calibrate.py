"""`servesim calibrate`: terms and tables from measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

calibrate_app = typer.Typer(
    help="Fit and import what prices steps: host terms from recorded servers, kernel tables from other projects.",
    no_args_is_help=True,
)

HOST_EXAMPLES = """
Examples:

  servesim calibrate host recorded/ --out vllm-0.23-h100.yaml

  servesim run --trace preset:azure-conv-2023 --model qwen3-14b --gpu h100 --host vllm-0.23-h100.yaml
"""


@calibrate_app.command(epilog=HOST_EXAMPLES)
def host(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Recorded runs and step logs of one engine, model and GPU.")
    ],
    out: Annotated[Path | None, typer.Option(help="YAML file to write; printed when not given.")] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(help='Name of a run not to be used ("steps": the step logs); repeatable.')
    ] = None,
) -> None:
    """Fit what an engine adds to its kernels to recorded steps."""
    import yaml

    from servesim.calibrate.host import fit_host
    from servesim.errors import UserError

    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    text = yaml.safe_dump(fit_host(folder, leave_out or ()).to_dict(), sort_keys=False)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        scratch = out.with_name(out.name + ".partial")
        scratch.write_text(text)
        scratch.replace(out)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    typer.echo(f"written to {out}")


import_app = typer.Typer(help="Kernel tables from measurements of other projects.", no_args_is_help=True)
calibrate_app.add_typer(import_app, name="import")

IMPORT_EXAMPLES = """
Examples:

  servesim calibrate import llmservingsim RTXPRO6000/Llama-3.1-8B/tp1 --out tables/

  servesim validate recorded/ --kernel-tables tables/
"""
_OUT = typer.Option("--out", metavar="DIR", help="Folder to write the tables to.")


@import_app.command(epilog=IMPORT_EXAMPLES)
def llmservingsim(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Profile: a folder <GPU>/<model>/tp<N> of CSV files.")],
    out: Annotated[Path, _OUT],
) -> None:
    """Profiles of LLMServingSim."""
    from servesim.calibrate.importers.llmservingsim import import_llmservingsim

    _imported(lambda: import_llmservingsim(folder, out), out)


@import_app.command()
def aiconfigurator(
    package: Annotated[Path, typer.Argument(metavar="PATH", help="The package's wheel or folder.")],
    out: Annotated[Path, _OUT],
    system: Annotated[str, typer.Option(help="GPU as the package calls it, such as h200_sxm.")],
    framework: Annotated[str, typer.Option(help="Engine whose kernels were measured.")] = "vllm",
) -> None:
    """Timings of the aiconfigurator-core package."""
    from servesim.calibrate.importers.aiconfigurator import import_aiconfigurator

    _imported(lambda: import_aiconfigurator(package, system, framework, out), out)


def _imported(convert: Callable[[], dict[str, int]], out: Path) -> None:
    """Run an importer and say what it wrote."""
    from servesim.errors import UserError

    try:
        written = convert()
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror}") from error
    for name, rows in written.items():
        typer.echo(f"{out / name}: {rows:,} rows")
