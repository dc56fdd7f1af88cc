"""`servesim recommend`: from a workload and an SLO to what to run."""

from __future__ import annotations

from typing import Annotated

import typer

from servesim.cli.experiments import (
    Attainment,
    Files,
    Jobs,
    Json,
    Out,
    Where,
    answer,
)
from servesim.cli.gate import Overwrite, Quiet, Verbose
from servesim.cli.options import ListingCommand
from servesim.sentinels import COMMON

EXAMPLES = """
\b
Examples:
  servesim recommend --trace trace.csv --model qwen3-8b --slo ttft:500,tpot:50
  servesim recommend --trace trace.csv --serve 'vllm serve Qwen/Qwen3-8B' --gpu h100 --slo tpot:40
"""


def recommend(
    context: typer.Context,
    scenarios: Files = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="Find the highest rate of N GPUs instead of the lowest price or, with --rate, the least latency.",
            rich_help_panel=COMMON,
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Find the highest rate for these dollars per hour instead of the lowest price or, with --rate, the "
            "least latency."
        ),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Latency to minimize with --rate and --budget or --gpus: p99 of ttft, tpot or e2el. By default, the "
            "first of these that has a limit.",
        ),
    ] = None,
    forms: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="NAME,...",
            help="Files to write into DIR/deploy besides the command: compose, kubernetes, llm-d, dynamo, or "
            "FILE.py:CLASS.",
        ),
    ] = None,
    attainment: Attainment = 0.99,
    max_replicas: Annotated[int, typer.Option(help="Maximum number of replicas to try for a given rate.")] = 64,
    search_seed: Annotated[int, typer.Option(help="Seed of the random changes that the search tries.")] = 0,
    by_formula: Annotated[bool, typer.Option("--by-formula", help="Include GPUs that have no kernel tables.")] = False,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals/--no-intervals", help="Add error bars for the model's error. This takes additional runs."
        ),
    ] = True,
) -> None:
    """Find what to run, and print the command.

    Settings that are not given are searched: hardware, engine, formats, parallelism and flags. For a recorded log,
    the cheapest deployment for its own rate is searched. With --serve, only flags are searched.
    """
    tune = "serve" in context.obj
    answer("recommend", **locals())


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES, cls=ListingCommand)(recommend)
