"""`servesim calibrate`: terms and tables from measurements."""

from __future__ import annotations

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
