"""`servesim run`: a trace through one deployment."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

RUN_EXAMPLES = """
\b
Examples:
  servesim run --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h200
  servesim run --trace trace.csv --model qwen3-14b --gpu h100 --rate 5 --slo ttft:500,tpot:50 --out result
  servesim run --trace synth:arrivals=poisson,rate=20,prompt=512,output=128 --model llama-3.1-70b --gpu h200 --tp 4
  servesim run scenario.yaml --set scheduler.max_num_seqs=64 --set engine.block_size=32
  servesim run result/scenario.yaml --scheduler my_policy.py:MyScheduler
"""


def run(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="In YAML; options and --set override it.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Trace file (format found from its content), preset:NAME, or synth:key=value,...."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Bundled model, or a Hugging Face config.json.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="h100, h200, a100, a100-40g, l40s, rtx-pro-6000, rtx-4090, rtx-5090, m2-ultra, or a YAML data sheet."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Policies and defaults of a system: vllm, vllm-v0, sglang, orca, fastertransformer, tgi, "
            "tensorrt-llm, llama.cpp, exllamav2, mlx, hf-generate."
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="name, name:key=value,... or file.py:Class. [default: vllm]")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="KV allocator, written the same way. [default: prefix-hash]")] = None,
    speculation: Annotated[
        str | None, typer.Option(help="Drafting: eagle3:k=3, ngram, draft-model:model=.... [default: none]")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="Which drafts turn out right: positions:marginal=0.7/0.5/0.3, ....")
    ] = None,
    router: Annotated[str | None, typer.Option(help="Router, written the same way. [default: round-robin]")] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of the model behind the router. [default: 1]")] = None,
    tp: Annotated[int | None, typer.Option(help="GPUs a stage (tensor parallelism). [default: 1]")] = None,
    pp: Annotated[int | None, typer.Option(help="Stages a replica (pipeline parallelism). [default: 1]")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Weights: bf16, fp16, fp32, fp8, int8, int4. [default: bf16]")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache: bf16, fp16, fp32, fp8. [default: bf16]")] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", "--request-rate", help="Scale arrivals to this many requests/s; inf: at once."),
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: at most so many requests outstanding, the others wait outside.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Replay the first so many requests.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of synthetic traces and presets. [default: 0]")] = None,
    host: Annotated[
        str | None, typer.Option(help="Host terms: auto, none, a shipped name or a YAML file. [default: auto]")
    ] = None,
    kernel_tables: Annotated[
        str | None, typer.Option(help="Folder of kernel tables instead of the shipped ones; roofline or ideal: none.")
    ] = None,
    slo: Annotated[str | None, typer.Option(help="Limits in ms, such as ttft:500,tpot:50,e2el:10000.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="fast, or reference: the same result step by step. [default: fast]")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Serve replicas in so many processes, where the router is blind (round-robin).")
    ] = 1,
    stream: Annotated[
        bool, typer.Option("--stream", help="For huge traces: bounded memory, no report, percentiles within 0.1 %.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check all invariants after every step, and the first 300 requests against reference mode."
        ),
    ] = False,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="What if the GPU had all the memory one likes.")
    ] = False,
    sort: Annotated[bool, typer.Option("--sort", help="Order the file's rows by arrival time.")] = False,
    spread_ticks: Annotated[
        bool, typer.Option("--spread-ticks", help="Spread requests that share a clock tick over it (Mooncake).")
    ] = False,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="STEP", help="Shape the trace, such as thin:keep=0.5; repeatable.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the scenario; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Result directory: report.html, summary.json, requests.parquet, ....")
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html into --out.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of tables.")] = False,
) -> None:
    """Replay a trace: latency, throughput, memory and price."""
    from servesim.run.scenario import load_settings, override
    from servesim.run.simulate import simulate

    values = {
        "trace": trace,
        "model": model,
        "gpu": gpu,
        "scheduler": scheduler,
        "kv": kv,
        "speculation": speculation,
        "acceptance": acceptance,
        "router": router,
        "replicas": replicas,
        "tp": tp,
        "pp": pp,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "rate": rate,
        "requests": requests,
        "seed": seed,
        "host": host,
        "kernel_tables": kernel_tables,
        "slo": slo,
        "mode": mode,
        "stream": stream or None,
        "check": check or None,
        "sort": sort or None,
        "spread_ticks": "uniform" if spread_ticks else None,
        "shape": shape or None,
    }
    flags = {key: value for key, value in values.items() if value is not None}
    settings = load_settings(scenario) if scenario is not None else {}
    if engine is not None:
        settings = {**settings, "preset": engine}
    settings = override(settings, assignments or ()) | flags
    if max_concurrency is not None:
        settings = override(settings, [f"clients.max_concurrency={max_concurrency}"])
    if ignore_memory:
        settings = override(settings, ["engine.ignore_memory=true"])
    with _progress() as bar:
        result = simulate(settings, out=out, on_ready=bar, jobs=jobs)
    if out is not None and with_report and not result.scenario.stream:
        from servesim.cli.report import write_report

        write_report(out)
    if as_json:
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(result.summary))
    else:
        from servesim.cli.summary import print_summary

        print_summary(result, out)


def _progress() -> Any:
    """A progress bar in simulated time, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from servesim.cli.summary import ProgressBar

    return ProgressBar()
