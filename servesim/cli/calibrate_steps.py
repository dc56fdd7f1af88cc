"""`servesim calibrate steps`: comparison of a profile with whole steps that it did not measure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.cli.calibrate_profile import COMMAND_BEGAN, MODELS, Bar, positive
from servesim.errors import UserError
from servesim.parsing import names

STEPS_EXAMPLES = """
\b
Examples:
  servesim calibrate steps --device cuda --model llama-3.1-8b --library _vllm_fa3_C.abi3.so --kernel-tables tables --out steps
  servesim calibrate steps --device cpu --model tiny-llama --kernel-tables tables --budget-s 60 --out steps
"""  # noqa: E501


def steps(
    model: Annotated[str, MODELS],
    kernel_tables: Annotated[Path, typer.Option(metavar="DIR", help="Profile to test.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for steps.csv, steps.json and the figure.")],
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    tp: Annotated[
        int, typer.Option(help="Run the shard of one GPU. Neither the steps nor the predictions include collectives.")
    ] = 1,
    dtype: Annotated[str | None, typer.Option(help="Formats of the linear layers, as in calibrate profile.")] = None,
    budget_s: Annotated[float, typer.Option(help="Time budget in seconds for all models together.")] = 540.0,
    kernels: Annotated[str | None, typer.Option(help="Kernel set, as in calibrate profile.")] = None,
    library: Annotated[
        list[Path] | None, typer.Option(help="Shared library, as in calibrate profile. Repeatable.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            help="Number of different steps to run: one third decode, one quarter prefill, and the rest mixed."
        ),
    ] = 120,
    max_tokens: Annotated[int | None, typer.Option(help="Largest step, in tokens. [default: 8192; cpu: 256]")] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Longest context, in tokens. [default: 16384; cpu: 256]")
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Maximum sequences per step. [default: 256; cpu: 16]")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Run whole steps and compare them with a profile.

    The model has random weights. The command also compares the sum of the kernel times.
    """
    from servesim.calibrate.kernels import open_kernels
    from servesim.calibrate.timing import open_device

    positive(tp=tp, budget_s=budget_s, count=count, threads=threads)
    positive(max_tokens=max_tokens, max_context=max_context, max_batch=max_batch)
    opened = open_device(device, threads)
    ops = open_kernels(opened, kernels, dtype, library or [])
    chosen = dtype or ops.dtypes[0]
    gpu = device == "cuda"
    tokens, context, batch = (8192, 16384, 256) if gpu else (256, 256, 16)
    limits = (max_tokens or tokens, max_context or context, max_batch or batch)
    models = names("--model", model)
    for i, name in enumerate(models):
        deadline = COMMAND_BEGAN + budget_s * (i + 1) / len(models)
        _one(opened, ops, name, tp, chosen, kernel_tables, limits, count, deadline, out)
        opened.release()


def _one(
    device: Any,
    ops: Any,
    name: str,
    tp: int,
    dtype: str,
    tables: Path,
    limits: tuple[int, int, int],
    count: int,
    deadline: float,
    out: Path,
) -> None:
    from servesim.calibrate.journal import Journal
    from servesim.calibrate.points import Shard
    from servesim.calibrate.steps import KINDS, compositions, run_steps, scatter, steps_csv, summary
    from servesim.cost import build_cost_model
    from servesim.hardware import Gpu, ModelSpec
    from servesim.run.result_files import to_json, write_text

    shard = Shard(ModelSpec.load(name), tp, dtype)
    half = shard.model.max_position // 2  # prefill chunk plus equally long context
    limits = (min(limits[0], half), min(limits[1], half), limits[2])
    profile = Journal.load(tables)
    gpu = Gpu.load(profile.settings["gpu"] or str(tables / "device.yaml"))
    cost = build_cost_model(
        shard_of(shard), gpu, 1, dtype, kv_dtype="fp32" if dtype == "fp32" else "bf16", tables=tables
    )
    heads = shard.heads
    token = 2.0 * heads.kv_heads * heads.head_dim * ops.bytes_of(shard.wide) * shard.model.num_layers
    room = int(device.free_bytes() * 0.4 / token)
    found = compositions(*limits, kv_tokens=min(room, 300_000), share=count / sum(KINDS.values()))
    with Bar() as bar:
        done = run_steps(device, ops, shard, cost, found, lambda: time.monotonic() > deadline, bar)
    figures = {
        "model": shard.model.name, "tp": tp, "dtype": dtype, "kernels": ops.name, **summary(done), **device.describe()
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        stem = f"{shard.model.name}-tp{tp}-{dtype}"
        steps_csv(out / f"{stem}.csv", done)
        write_text(out / f"{stem}.json", to_json(figures), "--out")
        scatter(out / f"{stem}.svg", done, f"{shard.model.name} {dtype}, {device.name}: {len(done)} held-out steps")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from error
    _print(figures, len(done), len(found), out / stem)


def shard_of(shard: Any) -> Any:
    """Return the model shard that one GPU of `tp` runs, as a separate model without collectives."""
    from dataclasses import replace

    heads, model = shard.heads, shard.model
    return replace(
        model,
        num_heads=heads.heads,
        num_kv_heads=heads.kv_heads,
        intermediate_size=model.intermediate_size // shard.tp,
        vocab_size=model.vocab_size // shard.tp,
    )


def _print(figures: dict[str, Any], done: int, total: int, stem: Path) -> None:
    typer.echo(f"{figures['model']} {figures['dtype']} on {figures['device']}: {done} of {total} held-out steps")
    for kind, values in figures["kinds"].items():
        line = f"  {kind:8} {_errors(values)}"
        if "with_host" in values:
            line += (
                f"; with {figures['host_us']:.1f} us of host time, fitted to the other half: "
                f"{_errors(values['with_host'])}"
            )
        typer.echo(line)
    typer.echo(f"{stem}.csv, .json, .svg")


def _errors(values: dict[str, float]) -> str:
    mape, p95, bias = (100 * values[name] for name in ("mape", "p95", "bias"))
    return f"{values['steps']:3} steps, MAPE {mape:.1f} %, p95 {p95:.1f} %, bias {bias:+.1f} %"
