"""`servesim run`: replay of a trace through one deployment."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.cli.gate import Overwrite, Quiet, Require, Verbose, a_directory, end_if, requirements
from servesim.cli.options import OPTIONS
from servesim.sentinels import COMMON

RUN_EXAMPLES = """
\b
Examples:
  servesim run --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h200
  servesim run --trace trace.csv --model qwen3-14b --gpu h100 --rate 5 --slo ttft:500,tpot:50 --out busy
  servesim run --trace synth:arrivals=poisson,rate=20,prompt=512,output=128 --model llama-3.1-70b --gpu h200 --tp 4
  servesim run scenario.yaml --scheduler.max-num-seqs 64 --engine.block-size 32
  servesim run result/scenario.yaml --scheduler my_policy.py:MyScheduler
  servesim run scenario.yaml --require 'output_throughput>=10' --require 'ttft_p99<=60s' -q

Paths in SCENARIO are relative to it.
"""


def run(
    context: typer.Context,
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO", help="YAML file. Options and --set override it.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes that simulate replicas. This works only with routers that ignore load "
            "(round-robin).",
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=a_directory,
            help="Result directory for report.html, summary.json, requests.parquet and other files.",
            rich_help_panel=COMMON,
        ),
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html to --out.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary.json instead of tables.", rich_help_panel=COMMON)
    ] = False,
    require: Require = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    step_requests: Annotated[
        bool, typer.Option("--step-requests", help="Record the requests in each step. Requires --mode reference.")
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNCTION,...", help="Your own metrics (docs/metrics.md).")
    ] = None,
    versions: Annotated[
        bool,
        typer.Option(help="If no engine version is set, compare latencies under all known versions, in short runs."),
    ] = True,
) -> None:
    """Replay a trace and show latency, throughput, memory and price."""
    from servesim.cli.requirements import failures
    from servesim.cli.serving import save, tell_unread, under_commands
    from servesim.metrics.custom import load_metrics
    from servesim.run.setting_names import load_settings
    from servesim.run.simulate import simulate

    saved, options = context.obj.pop("save_scenario", None), context.obj.pop(OPTIONS)
    base = under_commands([load_settings(scenario, context.obj) if scenario is not None else {}], context.obj, "run")
    tell_unread([scenario] if scenario is not None else [])
    settings = settings_over(base[0], context.obj)
    units = {name: getattr(function, "unit", "") for name, function in load_metrics(metrics)}
    required = requirements(require, units, [settings])
    save([(settings, {})], saved)
    with _progress(quiet) as bar:
        result = simulate(
            settings,
            out=out,
            on_ready=bar,
            jobs=jobs,
            page=_page if with_report else None,
            overwrite=overwrite,
            step_requests=step_requests,
            metrics=metrics,
            **options,
        )
    if as_json:
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(result.summary))
    elif not quiet:
        from servesim.cli.faster import tell_once
        from servesim.cli.summary import print_summary

        print_summary(result, out, verbose, _under_versions(settings, result) if versions else None)
        tell_once()
    requests = result.summary["requests"]
    if requests["arrived"] and not requests["completed"]:
        end_if([f"none of {requests['arrived']:,} requests was served"])
    if required:
        from servesim.experiments.metrics import summary_values

        unstable = (
            ["the queue was still growing when arrivals ended"] if result.summary["stability"]["unstable"] else []
        )
        end_if([*failures(required, summary_values(result.summary)), *unstable])


def _under_versions(settings: dict[str, Any], result: Any) -> tuple[str, str] | None:
    """Return a warning and a note on what other versions of the engine would give, if none is set and they differ."""
    from servesim.run.under_versions import under_versions

    found = under_versions(settings, result.summary["requests"]["arrived"])
    return (found.warning, found.details) if found is not None and found.matters else None


def _page(folder: Path) -> None:
    from servesim.cli.report import write_report

    write_report(folder)


def settings_over(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return settings overridden by the command line: first a preset and features, then --set, then options; keys with
    a dot are applied after all others."""
    from servesim.run.part_names import assign
    from servesim.run.scenario import Scenario
    from servesim.run.setting_names import assigned, override

    whole = {key: value for key, value in given.items() if "." not in key and key != "set"}
    first = {key: value for key, value in whole.items() if key in ("preset", "features")}
    parts: dict[bool, list[str]] = {True: [], False: []}
    for assignment in given.get("set", ()):
        parts["." in assigned(assignment)[0]].append(assignment)
    settings = override(settings | first, parts[False])
    for key, value in whole.items():
        assign(settings, key, value, Scenario)
    options = [f"{key}={value}" for key, value in given.items() if "." in key]
    return override(settings, [*parts[True], *options])


def _progress(quiet: bool) -> Any:
    """Return a progress bar in simulated time, shown only on a terminal."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    from servesim.cli.summary import ProgressBar

    return ProgressBar()
