"""`servesim compare`, `sweep`, `capacity` and `worth`: the command line of experiments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.cli.gate import (
    CAPACITY_UNITS,
    Overwrite,
    Quiet,
    Require,
    Verbose,
    a_directory,
    capacity_failures,
    comparison_failures,
    end_if,
    requirements,
)
from servesim.cli.options import ListingCommand
from servesim.errors import Interrupted, UserError
from servesim.sentinels import COMMON

if TYPE_CHECKING:
    from servesim.cli.requirements import Requirement

COMPARE_EXAMPLES = """
\b
Examples:
  servesim compare --trace preset:azure-conv-2023 --requests 2000 --model llama-3.1-8b --gpu h200 --kv paged,prefix-hash
  servesim compare a.yaml b.yaml --metrics ttft_p99,tpot_mean --out ab
  servesim compare scenario.yaml bench.json

bench.json is the output of vllm bench serve --save-detailed. Its requests are replayed, and it is the baseline.
"""
SWEEP_EXAMPLES = """
\b
Examples:
  servesim sweep --trace preset:azure-conv-2023 --requests 1000 --model llama-3.1-8b --gpu h100,h200 --rate 2,4,8
  servesim sweep grid.yaml --best-by usd_per_million_tokens --trials 40 --out result

grid.yaml is a scenario with a key axes, such as  axes: {scheduler: [static, vllm], engine.block_size: [16, 32]}
"""
CAPACITY_EXAMPLES = """
\b
Examples:
  servesim capacity --trace preset:azure-conv-2023 --requests 900 --model llama-3.1-8b --gpu h100,h200 --slo ttft:500
  servesim capacity --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h100,h200 --tp 1,2 --slo tpot:30 --rate 9
"""
WORTH_EXAMPLES = """
\b
Examples:
  servesim worth --of fp8,tp --trace preset:azure-conv-2023 --requests 900 --model qwen3-8b --gpu h100 --slo ttft:2s
  servesim worth scenario.yaml --of engine.block_size=32 --slo ttft:500 --rate 9

The command compares each change alone, and all changes together, with a deployment that has none of them.
"""
Files = Annotated[
    list[str] | None, typer.Argument(metavar="SCENARIO", help="YAML file. Options and --set override it.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        callback=a_directory,
        help="Result directory. A rerun computes only what is missing.",
        rich_help_panel=COMMON,
    ),
]
Jobs = Annotated[int | None, typer.Option(help="Number of processes. [default: one per core]")]
Where = Annotated[
    str,
    typer.Option("--executor", help="Where the runs are executed: local, ray, or ray:ADDRESS of a running cluster."),
]
ENDS = "Fraction of arrivals to exclude at the {}. [default: 0.1; 0 for a recorded trace]"
Warmup = Annotated[float | None, typer.Option(help=ENDS.format("start"))]
Cooldown = Annotated[float | None, typer.Option(help=ENDS.format("end"))]
Window = Annotated[int | None, typer.Option(help="Requests per window. [default: the trace divided by the replicates]")]
REPLICATES = "Number of replicates: seeds, or windows of a recorded trace (replicas are servers)."
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=COMMON)]
Metrics = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="Metrics to report, such as ttft_p99,output_throughput. FILE.py:FUNCTION adds your own metric.",
        rich_help_panel=COMMON,
    ),
]
Attainment = Annotated[
    float, typer.Option(help="Fraction of requests that must meet every SLO.", rich_help_panel=COMMON)
]


def compare(
    context: typer.Context,
    scenarios: Files = None,
    replicates: Annotated[
        int | None,
        typer.Option(help=f"{REPLICATES} 1 compares parts of one run. [default: 10]"),
    ] = None,
    window: Window = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Variant to compare with. [default: the first stable variant]",
            rich_help_panel=COMMON,
        ),
    ] = None,
    metrics: Metrics = None,
    rank_by: Annotated[str, typer.Option(help="Metric for the ranking and the headline.")] = "ttft_p99",
    margin: Annotated[float, typer.Option(help="Smallest relative change that matters.")] = 0.02,
    interval: Annotated[str, typer.Option(help="Confidence interval: auto, t, studentized or bca.")] = "auto",
    warmup: Warmup = None,
    cooldown: Cooldown = None,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
    require: Require = None,
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
    """Compare variants, with a confidence interval of each change.

    A setting may list several values, separated by commas. Every combination is one variant. All variants replay the
    same draws of the workload.
    """
    answer("compare", **locals())


def sweep(
    context: typer.Context,
    scenarios: Files = None,
    replicates: Annotated[int | None, typer.Option(help=f"{REPLICATES} [default: 1]")] = None,
    window: Window = None,
    metrics: Metrics = None,
    best_by: Annotated[
        str | None,
        typer.Option(
            help="Metric that decides which variant is best. [default: goodput, or e2el_mean]",
            rich_help_panel=COMMON,
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Let Optuna choose N combinations.", rich_help_panel=COMMON)
    ] = None,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
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
            "--intervals/--no-intervals", help="Add error bars for the model's error. This takes no additional runs."
        ),
    ] = True,
) -> None:
    """Run every combination of the listed values.

    A setting may list several values, separated by commas. Results that are already in --out are not rerun.
    """
    answer("sweep", **locals())


def capacity(
    context: typer.Context,
    scenarios: Files = None,
    attainment: Attainment = 0.99,
    replicates: Annotated[int | None, typer.Option(help=f"{REPLICATES} [default: 5]")] = None,
    window: Window = None,
    window_minutes: Annotated[
        float, typer.Option(help="Minutes per window. The SLO must hold in every window of a recorded trace.")
    ] = 10.0,
    window_requests: Annotated[int, typer.Option(help="Minimum number of requests for a window to count.")] = 300,
    tolerance: Annotated[float, typer.Option(help="Relative tolerance at which the search for a rate stops.")] = 0.02,
    max_replicas: Annotated[int, typer.Option(help="Maximum number of replicas to try for a given rate.")] = 64,
    by_formula: Annotated[bool, typer.Option("--by-formula", help="Include GPUs that have no kernel tables.")] = False,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
    require: Require = None,
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
    """Find the highest rate that meets the SLO.

    With --rate, find the cheapest deployment that sustains that rate. A setting may list several values, separated by
    commas.
    """
    answer("capacity", **locals())


def worth(
    context: typer.Context,
    scenarios: Files = None,
    of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE,...",
            help="Changes to evaluate, such as fp8,tp=4. A change is prefix-caching, fp8, fp8-kv, speculation, "
            "offload, "
            "tp, ..., or a setting with its value.",
            rich_help_panel=COMMON,
        ),
    ] = None,
    attainment: Attainment = 0.99,
    replicates: Annotated[int | None, typer.Option(help=f"{REPLICATES} [default: 5]")] = None,
    window: Window = None,
    tolerance: Annotated[float, typer.Option(help="Relative tolerance at which the search for a rate stops.")] = 0.02,
    max_replicas: Annotated[int, typer.Option(help="Maximum number of replicas to try for a given rate.")] = 64,
    by_formula: Annotated[bool, typer.Option("--by-formula", help="Include GPUs that have no kernel tables.")] = False,
    warmup: Warmup = None,
    cooldown: Cooldown = None,
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
    """Show how much prefix caching, FP8, TP or a setting saves.

    The command compares the price of meeting the SLO with and without it, on the same requests.
    """
    answer("worth", **{**locals(), "of": of or []})


def answer(
    command: str,
    context: typer.Context,
    scenarios: Sequence[str] | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    require: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Run an experiment with the options of its command as keywords, and print the result."""
    import servesim
    from servesim.cli import tables
    from servesim.cli.progress import Bar
    from servesim.cli.serving import prepared
    from servesim.experiments.axes import load_grid

    run, table = getattr(servesim, command), getattr(tables, f"print_{command}")
    files, out = scenarios or (), options["out"]
    if command != "compare" and len(files) > 1:
        raise UserError(f"{command}: specify one scenario file, not {len(files)} ({' '.join(files)})")
    if options.get("metrics") is not None:
        _register(options["metrics"])
    scenarios, axes = prepared(command, files, context.obj, axes_of)
    first: Sequence[Any] = scenarios or [{}]
    grids = (load_grid(scenario, axes) for scenario in first)
    known = ({**settings, **lists} for settings, lists in grids)
    required = requirements(require, CAPACITY_UNITS if command == "capacity" else None, known)
    if command == "compare":
        _check_compared(required, options["metrics"], options["rank_by"])
    elif command == "capacity":
        _check_reported(required)
    with kept(out), Bar(command, quiet) as bar:
        document = run(*scenarios, **options, on_progress=bar, **axes).attrs["document"]
    if out is not None:
        from servesim.cli.report import write_report

        write_report(out)
    if as_json:
        from servesim.experiments.documents import plain
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(plain(document)))
    elif not quiet:
        table(document, out, verbose)
    if required:
        end_if((comparison_failures if command == "compare" else capacity_failures)(required, document))
    if all(row["error"] for row in document.get("variants", document.get("rows"))):
        raise typer.Exit(1)  # nothing ran


def _register(metrics: str) -> None:
    """Register the user's own metrics by name before anything looks them up."""
    from servesim.experiments.metrics import metrics_of
    from servesim.parsing import listed

    if own := [name for name in listed("metrics", metrics) if ".py:" in name]:
        metrics_of(own, {})


def _check_compared(required: Sequence[Requirement], metrics: str | None, rank_by: str) -> None:
    """Raise UserError for a requirement on a metric that is not compared."""
    from servesim.experiments.metrics import DEFAULTS, SLO_DEFAULTS
    from servesim.parsing import listed

    listed_ones = (*DEFAULTS, *SLO_DEFAULTS) if metrics is None else listed("metrics", metrics)
    compared = {rank_by, *(name.rpartition(".py:")[2] for name in listed_ones)}
    for one in required:
        if one.name not in compared:
            raise UserError(f"--require {one.text}: {one.name} is not compared; add it to --metrics")


def _check_reported(required: Sequence[Requirement]) -> None:
    """Raise UserError for a requirement on a metric that capacity does not report."""
    from servesim.experiments.capacity_study import REPORTED

    known = (*REPORTED, *CAPACITY_UNITS)
    for one in required:
        if one.name not in known:
            raise UserError(f"--require {one.text}: capacity reports {', '.join(known)}")


@contextmanager
def kept(out: Path | None) -> Iterator[None]:
    """Keep everything already in the result directory when an interrupt occurs."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None or not out.exists():
            raise
        raise Interrupted(f"{out} keeps the finished runs; run the same command again to continue") from None


def axes_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by key in the order typed; if --set gives a key several times, the last value counts. A dedicated
    option overrides --set."""
    from servesim.run.setting_names import assigned

    found: dict[str, Any] = {}
    for key, value in given.items():
        if key != "set":
            found[key] = value
            continue
        for name, text in dict(map(assigned, value)).items():
            if name not in given:
                found[name] = [text] if name == "shape" else text
    return found


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=COMPARE_EXAMPLES, cls=ListingCommand)(compare)
    app.command(epilog=SWEEP_EXAMPLES, cls=ListingCommand)(sweep)
    app.command(epilog=CAPACITY_EXAMPLES, cls=ListingCommand)(capacity)
    app.command(epilog=WORTH_EXAMPLES, cls=ListingCommand)(worth)
