"""`servesim calibrate profile`: kernel tables from the local device."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import Interrupted, UserError
from servesim.parsing import names, whole_numbers

if TYPE_CHECKING:
    from servesim.calibrate.profile import Outcome

PROFILE_EXAMPLES = """
\b
Examples:
  servesim calibrate profile --device cuda --model llama-3.1-8b,qwen3-14b --library _vllm_fa3_C.abi3.so --out tables
  servesim calibrate profile --device cpu --model tiny-llama --budget-s 60 --out tables
  servesim run --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h200 --kernel-tables tables
"""
MODELS = typer.Option("--model", help="Bundled models, or config.json files, comma-separated.")
COMMAND_BEGAN = time.monotonic()


def profile(
    model: Annotated[str, MODELS],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the profile. An interrupted run continues.")],
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    tp: Annotated[str, typer.Option(help="Tensor-parallel degrees to profile, comma-separated.")] = "1",
    dtype: Annotated[
        str | None,
        typer.Option(help="Formats of the linear layers: bf16, fp8, int8, int4 or fp32. [default: bf16; cpu: fp32]"),
    ] = None,
    budget_s: Annotated[
        float, typer.Option(help="Time budget in seconds. The most important points are measured first.")
    ] = 540.0,
    kernels: Annotated[
        str | None,
        typer.Option(
            help="Kernel set: cuda_fa3_vllm, cuda_torch_sdpa or cpu_torch. [default: cuda_fa3_vllm; cpu: cpu_torch]"
        ),
    ] = None,
    library: Annotated[
        list[Path] | None, typer.Option(help="Shared library with the torch operators of the kernel set. Repeatable.")
    ] = None,
    max_drift: Annotated[
        float | None,
        typer.Option(help="Allowed change in the time of the reference GEMM, in percent. [default: 5; cpu: 50]"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Largest measured step, in tokens. [default: 8192; cpu: 512]")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Longest measured context, in tokens. [default: 32768; cpu: 1024]")
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Maximum sequences per step. [default: 256; cpu: 32]")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Time the kernels of a model on this machine.

    The kernels run on its GPU or CPU. The output is a folder of kernel tables.
    """
    from servesim.calibrate.kernels import open_kernels
    from servesim.calibrate.points import Shard
    from servesim.calibrate.profile import Options, profile
    from servesim.calibrate.timing import open_device
    from servesim.hardware import ModelSpec

    positive(budget_s=budget_s, max_drift=max_drift, threads=threads)
    positive(max_tokens=max_tokens, max_context=max_context, max_batch=max_batch)
    opened = open_device(device, threads)
    kernel_set = open_kernels(opened, kernels, dtype, library or [])
    chosen = dtype or kernel_set.dtypes[0]
    models = [ModelSpec.load(name) for name in names("--model", model)]
    degrees = whole_numbers("--tp", tp)
    shards = [Shard(spec, degree, chosen) for spec in models for degree in degrees]
    drift = max_drift / 100 if max_drift is not None else None
    options = Options(out, budget_s, drift, max_tokens, max_context, max_batch)
    try:
        with Bar() as bar:
            outcome = profile(opened, kernel_set, shards, options, bar, COMMAND_BEGAN)
    except KeyboardInterrupt:
        raise Interrupted(f"{out} keeps the measurements; run the same command again to continue") from None
    _report(outcome, out, options.max_drift or {"cuda": 0.05, "cpu": 0.5}[device])


def positive(**options: float | None) -> None:
    """Raise UserError for the first given value that is not a finite number above 0."""
    for name, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')} is {value:g} but must be above 0")


def _report(outcome: Outcome, out: Path, max_drift: float) -> None:
    for name, rows in outcome.tables.items():
        typer.echo(f"{out / name}: {rows:,} rows")
    typer.echo(f"{outcome.measured} of {outcome.total} points measured")
    for reason, count in outcome.skipped.items():
        typer.echo(f"skipped: {count} points, {reason}")
    if outcome.measured + sum(outcome.skipped.values()) < outcome.total:
        typer.echo("the time budget is used up: run the same command again to continue")
    if outcome.drift > max_drift:
        raise UserError(
            f"the clock drifted: the reference GEMM's time changed by {outcome.drift:.1%} (allowed: "
            f"{max_drift:.1%}). {out} keeps the measurements; run the same command again to repeat the measurements "
            "taken during the drift"
        )


class Bar:
    """Progress in points: a bar on a terminal, otherwise one line per set."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = ""
        self._began = time.monotonic()

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, name: str, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=name, completed=done, total=total)
        elif name != self._last:
            typer.echo(f"{time.monotonic() - self._began:6.1f} s  {name}, {done} of {total}", err=True)
        self._last = name
