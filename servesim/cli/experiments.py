"""`servesim compare`, `sweep` and `capacity`: the command line of experiments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.errors import Interrupted, UserError, suggest

SETTINGS = """
SETTINGS are scenario files, and any setting of a scenario as an option, as for servesim run: --trace, --model, --gpu,
--scheduler, --kv, --router, --replicas, --tp, --rate, --requests, --seed, --slo, --engine.block-size and so on. An
option may list several values with commas; every combination is one variant.
"""
COMPARE_EXAMPLES = """
\b
Examples:
  servesim compare --trace preset:azure-conv-2023 --requests 2000 --model llama-3.1-8b --gpu h200 --kv paged,prefix-hash
  servesim compare a.yaml b.yaml --metrics ttft_p99,tpot_mean --out ab
  servesim compare scenario.yaml bench.json

bench.json is what vllm bench serve --save-detailed measured: its requests are replayed, and it is the baseline.
"""
SWEEP_EXAMPLES = """
\b
Examples:
  servesim sweep --trace preset:azure-conv-2023 --requests 1000 --model llama-3.1-8b --gpu h100,h200 --rate 2,4,8
  servesim sweep grid.yaml --best-by usd_per_million_tokens --trials 40 --out result

A grid is a scenario with a key axes, such as  axes: {scheduler: [static, vllm], engine.block_size: [16, 32]}
"""
CAPACITY_EXAMPLES = """
\b
Examples:
  servesim capacity --trace preset:azure-conv-2023 --requests 900 --model llama-3.1-8b --gpu h100,h200 --slo ttft:500
  servesim capacity --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h100,h200 --tp 1,2 --slo tpot:30 --rate 9
"""
FLAGS: dict[str, tuple[str, Any]] = {
    "check": ("check", True),
    "sort": ("sort", True),
    "spread_ticks": ("spread_ticks", "uniform"),
    "ignore_memory": ("engine.ignore_memory", True),
}
"""Options without a value, and what they set."""
CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}

Arguments = Annotated[list[str] | None, typer.Argument(metavar="SETTINGS", help="See below.")]
Out = Annotated[Path | None, typer.Option(help="Directory for results; a rerun computes only what is missing.")]
Jobs = Annotated[int | None, typer.Option(help="Processes. [default: one a core]")]
Where = Annotated[str, typer.Option("--executor", help="local, ray, or ray:ADDRESS of a running cluster.")]
Warmup = Annotated[float, typer.Option(help="Share of the arrivals left out at the start.")]
Cooldown = Annotated[float, typer.Option(help="Share of the arrivals left out at the end.")]
Json = Annotated[bool, typer.Option("--json", help="Print the document instead of tables.")]


def compare(
    settings: Arguments = None,
    replicates: Annotated[int, typer.Option(help="Seeds, or windows of a recorded trace; 1: blocks in one run.")] = 10,
    baseline: Annotated[str | None, typer.Option(help="Compare with it. [default: the first stable variant]")] = None,
    metrics: Annotated[str | None, typer.Option(help="Such as ttft_p99,output_throughput.")] = None,
    rank_by: Annotated[str, typer.Option(help="Metric of the ranking and the headline.")] = "ttft_p99",
    margin: Annotated[float, typer.Option(help="Changes within it do not matter.")] = 0.02,
    interval: Annotated[str, typer.Option(help="auto, t, studentised or bca.")] = "auto",
    warmup: Warmup = 0.1,
    cooldown: Cooldown = 0.1,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Which policy is better, by how much, and how sure is that?

    All replay the same draws of the workload."""
    _answer("compare", locals())


def sweep(
    settings: Arguments = None,
    replicates: Annotated[int, typer.Option(help="Seeds, or windows of a recorded trace.")] = 1,
    metrics: Annotated[str | None, typer.Option(help="Such as ttft_p99,output_throughput.")] = None,
    best_by: Annotated[str | None, typer.Option(help="Metric of the best. [default: goodput, or e2el_mean]")] = None,
    trials: Annotated[int | None, typer.Option(help="Let Optuna choose so many combinations.")] = None,
    warmup: Warmup = 0.1,
    cooldown: Cooldown = 0.1,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run every combination of the axes.

    What is in --out already is not run again."""
    _answer("sweep", locals())


def capacity(
    settings: Arguments = None,
    attainment: Annotated[float, typer.Option(help="Share of requests that must meet every SLO.")] = 0.99,
    replicates: Annotated[int, typer.Option(help="Seeds, or windows of a recorded trace.")] = 5,
    tolerance: Annotated[float, typer.Option(help="Where bisection of a rate stops, as a ratio.")] = 0.02,
    max_replicas: Annotated[int, typer.Option(help="Most replicas to try for a given rate.")] = 64,
    warmup: Warmup = 0.1,
    cooldown: Cooldown = 0.1,
    jobs: Jobs = None,
    executor: Where = "local",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find the highest rate within the SLO.

    With --rate: the cheapest deployment that carries it."""
    _answer("capacity", locals())


def _answer(command: str, given: Mapping[str, Any]) -> None:
    """Run an experiment with the options of its command, which are its keywords, and print what came of it."""
    import servesim
    from servesim.cli import tables

    run, table = getattr(servesim, command), getattr(tables, f"print_{command}")
    options = {key: value for key, value in given.items() if key not in ("settings", "as_json")}
    files, axes = scenario_arguments(given["settings"] or ())
    if command != "compare" and len(files) > 1:
        raise UserError(f"{command}: one scenario file is needed, not {len(files)} ({' '.join(files)})")
    out: Path | None = given["out"]
    with kept(out), tables.Bar() as bar:
        document = run(*files, **options, on_progress=bar, **axes).attrs["document"]
    if out is not None:
        from servesim.cli.report import write_report

        write_report(out)
    if given["as_json"]:
        from servesim.experiments.documents import plain
        from servesim.run.result_files import to_json

        sys.stdout.write(to_json(plain(document)))
    else:
        table(document, out)
    if all(row["error"] for row in document.get("variants", document.get("rows"))):
        raise typer.Exit(1)  # nothing ran


@contextmanager
def kept(out: Path | None) -> Iterator[None]:
    """An interrupt loses nothing that is in the result directory already."""
    try:
        yield
    except KeyboardInterrupt:
        if out is None:
            raise
        raise Interrupted(f"{out} keeps the runs that ended; the same command goes on from there") from None


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=SETTINGS + COMPARE_EXAMPLES, context_settings=CONTEXT)(compare)
    app.command(epilog=SETTINGS + SWEEP_EXAMPLES, context_settings=CONTEXT)(sweep)
    app.command(epilog=SETTINGS + CAPACITY_EXAMPLES, context_settings=CONTEXT)(capacity)


def scenario_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Scenario files, and settings by key: from `--key value`, `--key=value`, flags and `--set key=value`."""
    files: list[str] = []
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if word.startswith("-") and word != "-":
                raise UserError(f"no such option: {word}")
            files.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        key = name.replace("-", "_")
        if key in FLAGS and not equals:
            found[FLAGS[key][0]] = FLAGS[key][1]
            continue
        _known(word, key)
        if not equals:
            if not rest:
                raise UserError(f"option {word} needs a value")
            value = rest.pop(0)
        if key == "set":
            key, assigned, value = value.partition("=")
            if not assigned:
                raise UserError(f"--set {key}: write key=value, such as engine.block_size=32")
        if key == "shape":
            found.setdefault("shape", []).append(value)
        else:
            found[key.strip()] = value  # the last holds, as everywhere
    return files, found


def _known(option: str, key: str) -> None:
    from servesim.run.scenario import Scenario

    if key != "set" and key.partition(".")[0] not in Scenario.model_fields:
        known = [*Scenario.model_fields, *FLAGS, "set", *_OPTIONS]
        hint = suggest(key, known) if suggest(key, known).startswith(" (did") else ""
        raise UserError(f"no such option: {option}{hint.replace('_', '-')}")


_OPTIONS = (
    *("replicates", "baseline", "metrics", "rank_by", "margin", "interval", "warmup", "cooldown"),
    *("attainment", "tolerance", "max_replicas", "best_by", "trials", "jobs", "executor", "out", "json"),
)
