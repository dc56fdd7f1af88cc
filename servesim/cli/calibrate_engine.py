"""`servesim calibrate engine`: a trace served by a real engine, logged for `servesim validate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.cli.calibrate_profile import positive
from servesim.errors import UserError, suggest

ENGINE_EXAMPLES = """
\b
Examples:
  servesim calibrate engine --engine transformers --device cpu --model tiny-llama --trace synth:rate=20,prompt=96,output=24 --requests 24 --kernel-tables tables --out log
  servesim validate log --kernel-tables tables --host log/host.yaml
"""  # noqa: E501
ENGINES = ("transformers", "vllm")


def engine(
    model: Annotated[str, typer.Option(help="Bundled model, or a config.json.")],
    trace: Annotated[str, typer.Option(help="Trace file, preset:NAME or synth:key=value,....")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the log.")],
    engine: Annotated[str, typer.Option(help="Engine: vllm or transformers.")] = "vllm",
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    requests: Annotated[int | None, typer.Option(help="Use only the first N requests.")] = None,
    rate: Annotated[float | None, typer.Option(help="Scale arrivals to this many requests/s.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of synthetic traces and presets.")] = 0,
    max_num_seqs: Annotated[int | None, typer.Option(help="Maximum requests per step.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Maximum tokens per step.")] = None,
    num_blocks: Annotated[int | None, typer.Option(help="Number of KV blocks.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per KV block.")] = None,
    scheduler_type: Annotated[str, typer.Option(help="transformers: fifo or prefill_first.")] = "fifo",
    threads: Annotated[int, typer.Option(help="transformers on a CPU: number of threads.")] = 1,
    clock: Annotated[
        str, typer.Option(help="transformers on a CPU: wall, or cpu to exclude the time of other processes.")
    ] = "wall",
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=JSON", help="vllm: any field of EngineArgs, such as enable_prefix_caching=true."),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Number of warm-up requests before the logged ones.")] = 24,
    kernel_tables: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Profile of this machine, to fit host terms to the warm-up.")
    ] = None,
) -> None:
    """Serve a trace with a real engine and log its steps.

    The weights are random, and arrivals are open-loop. The log also contains every request.
    """
    from servesim.hardware import ModelSpec
    from servesim.traces import open_trace

    if engine not in ENGINES:
        raise UserError(f"unknown engine {engine!r}{suggest(engine, ENGINES)}")
    spec, config = ModelSpec.load(model), model_config(model)
    loaded = open_trace(trace, requests=requests, seed=seed)
    if rate is not None:
        loaded = loaded.with_rate(rate)
    gpu, sheet = _profiled(kernel_tables) if kernel_tables is not None else (None, None)
    longest = int((loaded.prompt_len + loaded.output_len).max())
    if longest > spec.max_position:
        raise UserError(
            f"trace {trace}: a request of {longest} tokens exceeds the maximum of {spec.max_position} of {spec.name}"
        )
    given: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "num_blocks": num_blocks,
        "block_size": block_size,
    }
    positive(**given, threads=threads)
    if warmup < 0:
        raise UserError(f"--warmup is {warmup} but must be at least 0")
    given = {key: value for key, value in given.items() if value is not None}
    if engine == "transformers":
        from servesim.calibrate.engines.transformers import TransformersSettings, run_transformers

        if clock not in ("wall", "cpu") or (clock == "cpu" and (device, threads) != ("cpu", 1)):
            raise UserError(f"--clock {clock}: must be wall, or cpu (with --device cpu and one thread)")
        settings = TransformersSettings(**given, scheduler_type=scheduler_type, threads=threads, clock=clock)
        log = run_transformers(config, spec.name, loaded, settings, device, warmup)
    else:
        from servesim.calibrate.engines.vllm import VllmSettings, run_vllm

        log = run_vllm(config, spec.name, loaded, VllmSettings(**given, more=_arguments(engine_arg or [])), warmup)
    log.check()
    if sheet is not None:
        log.meta["gpu"] = sheet.name
    log.write(out)
    if sheet is not None:
        shutil.copyfile(sheet, out / sheet.name)
    typer.echo(f"{out}: {len(log.requests)} requests, {len(log.steps)} steps by {log.meta['engine']}")
    if kernel_tables is not None and gpu is not None:
        terms = _host_terms(log, spec, gpu, kernel_tables)
        log.write(out, terms)
        typer.echo(f"{out / 'host.yaml'}: host time of a step, {terms.provenance}")


def _host_terms(log: Any, spec: Any, gpu: Any, tables: Path) -> Any:
    """Return host terms fitted to the steps of the warm-up."""
    from servesim.calibrate.engines import fit_step_host
    from servesim.cost import build_cost_model
    from servesim.experiments.recording import server_dtype

    dtype, kv_dtype = (server_dtype(log.meta[key]) for key in ("dtype", "kv_cache_dtype"))
    cost = build_cost_model(spec, gpu, dtype=dtype, kv_dtype=kv_dtype, tables=tables)
    return fit_step_host(log.warmup, cost, log.meta["engine"])


def _profiled(tables: Path) -> tuple[Any, Path | None]:
    """Return the device of a profile, and its data sheet if servesim does not have one."""
    from servesim.calibrate.journal import SHEET, Journal
    from servesim.hardware import Gpu

    sheet = tables / SHEET
    known = Journal.load(tables).settings.get("gpu")
    if known is None and not sheet.is_file():
        raise UserError(f"{tables} has no {SHEET}: no GEMM has been profiled yet")
    return Gpu.load(known or str(sheet)), None if known else sheet


def _arguments(assignments: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        try:
            found[key] = json.loads(value)
        except ValueError:
            raise UserError(f"--engine-arg {text}: must be KEY=JSON, with a JSON value") from None
        if not equals or not key.isidentifier():
            raise UserError(f"--engine-arg {text}: must be KEY=JSON")
    return found


def model_config(name_or_path: str) -> dict[str, Any]:
    """Return the unmodified Hugging Face config of a bundled model or a file."""
    from importlib import resources

    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        text = path.read_text()
    else:
        text = resources.files("servesim.hardware").joinpath(f"models/{name_or_path.lower()}.json").read_text()
    config: dict[str, Any] = json.loads(text)
    return config
