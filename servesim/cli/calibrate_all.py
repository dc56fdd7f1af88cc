"""`servesim calibrate all`: from nothing to tested kernel tables and host terms of one model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servesim.cli.calibrate_engine import ENGINES, model_config
from servesim.cli.calibrate_profile import positive
from servesim.errors import Interrupted, UserError, suggest

if TYPE_CHECKING:
    from servesim.calibrate.chain import Chain

ALL_EXAMPLES = """
\b
Examples:
  servesim calibrate all --model llama-3.1-8b --library _vllm_fa3_C.abi3.so --out h200
  servesim calibrate all --device cpu --model tiny-llama --out here
  servesim calibrate all --device cpu --model tiny-llama --out here --dry-run
"""
DEVICES = ("cuda", "cpu")


def all_(
    model: Annotated[str, typer.Option(help="Bundled model, or a config.json.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for everything. An interrupted run continues.")],
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    budget_s: Annotated[
        float | None,
        typer.Option(help="Seconds for kernels and whole steps; the rest takes minutes. [default: 3000; cpu: 360]"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Engine: vllm or transformers. [default: vllm if installed on a GPU, else transformers]"),
    ] = None,
    library: Annotated[
        list[Path] | None, typer.Option(help="Shared library, as in calibrate profile. Repeatable.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Trace for the engine. [default: 240 requests of azure-conv-2023 at 4/s; cpu: 24 at 20/s]"),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Use only the first N requests of the trace.")] = None,
    rate: Annotated[float | None, typer.Option(help="Scale arrivals to this many requests/s.")] = None,
    max_drift: Annotated[
        float | None, typer.Option(help="Allowed drift of the clock in percent, as in calibrate profile.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the stages and which are done; run none.")] = False,
) -> None:
    """Measure, fit and test all that prices a model here.

    Runs profile, steps, engine, validate, left-out and report, each as the command it prints, and writes report.md.
    """
    from servesim.calibrate.chain import REPORT, Chain, Plan, stages
    from servesim.calibrate.chain_report import report
    from servesim.calibrate.points import Shard
    from servesim.calibrate.timing import open_device
    from servesim.hardware import ModelSpec
    from servesim.run.result_files import write_text

    positive(budget_s=budget_s, requests=requests, rate=rate, max_drift=max_drift)
    if device not in DEVICES:
        raise UserError(f"unknown device {device!r} (choose from: cpu, cuda)")
    if engine is not None and engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r}{suggest(engine, ENGINES)}")
    for path in library or ():
        if not path.is_file():
            raise UserError(f"--library {path}: no such file")
    spec = ModelSpec.load(model)
    config = model_config(model)
    dtype = "fp32" if str(config.get("torch_dtype") or config.get("dtype")).endswith("float32") else "bf16"
    Shard(spec, 1, dtype)  # refuses models that cannot be profiled
    plan = Plan(model, device, budget_s, engine, dtype, tuple(library or ()), trace, requests, rate, max_drift)
    chain = Chain(out, stages(plan))
    if dry_run:
        return _list(chain)
    open_device(device)
    with chain.claimed():
        try:
            chain.run(say=typer.echo)
        except KeyboardInterrupt:
            raise Interrupted(f"{out} keeps what is done; run the same command again to continue") from None
        text = report(out, chain.record)
        write_text(out / REPORT, text, "--out")
    typer.echo(text)
    typer.echo(f"written to {out / REPORT}")


def _list(chain: Chain) -> None:
    from rich.table import Table

    from servesim.cli.console import open_console

    todo = chain.todo()
    table = Table("stage", "why", "files", "done", box=None, header_style="bold")
    for stage in chain.parts:
        table.add_row(stage.name, stage.why, " ".join(stage.files), "no" if stage in todo else "yes")
    open_console().print(table)
    typer.echo(f"\nin {chain.folder}:")
    for stage in chain.parts:
        typer.echo(f"  servesim {shlex.join(stage.command())}")
