"""`servesim measure`: measurements of a running server, as a cell file and recorded runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import UserError, suggest
from servesim.sentinels import COMMON

if TYPE_CHECKING:
    from servesim.experiments.measure.loops import Point
    from servesim.experiments.measure.startup import Facts
    from servesim.experiments.measure.study import Measured

MEASURE_EXAMPLES = """
\b
Examples:
  servesim measure http://localhost:8000 --gpu h100 --log vllm.log --out mine
  servesim measure http://localhost:8000 --gpu h200 --tp 2 --flags 'vllm serve Qwen/Qwen3-32B -tp 2' --out mine
  servesim measure http://localhost:8000 --gpu h100 --minutes 5 --clients 8,32 --repeats 1 --out mine
  servesim measure http://localhost:8000 --gpu h100 --short --out mine
  servesim accuracy mine/cells.csv

The command sends requests to the server for about 20 minutes, or for 5 with --short. mine/ then contains cells.csv, a
recorded run of every loop (for servesim validate and servesim calibrate host) and server_config.json. With --short, it
also contains host.yaml (for servesim run --host), unless no host terms fit. If a request fails, nothing is written.
"""


def measure(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="OpenAI-compatible server, such as http://localhost:8000.")],
    gpu: Annotated[str, typer.Option(help="GPU of the server.", rich_help_panel=COMMON)],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the measurements.", rich_help_panel=COMMON)],
    tp: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tensor parallelism. [default: from flags or log, or otherwise 1]", rich_help_panel=COMMON
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Weight format: bf16, fp8 or int4. [default: from flags, log or name]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Hugging Face name of the model. [default: from flags, log or the server]", rich_help_panel=COMMON
        ),
    ] = None,
    served_name: Annotated[str | None, typer.Option(help="Model to request, if the server has several models.")] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Startup log of the server.", rich_help_panel=COMMON)
    ] = None,
    flags: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Command that started the server.", rich_help_panel=COMMON)
    ] = None,
    short: Annotated[
        bool,
        typer.Option(
            "--short",
            help="Measure for five minutes: one client, then 64 and 512 requests at once. The command also prints "
            "the kind of host and fits host terms to it.",
            rich_help_panel=COMMON,
        ),
    ] = False,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Total time in minutes. Loops end early to stay within it. With --short, the default and the "
            "maximum are 5.",
            rich_help_panel=COMMON,
        ),
    ] = 20.0,
    idle: Annotated[
        str, typer.Option(metavar="<int,...>", help="Prompt lengths of the idle measurement (one client).")
    ] = "128,512,2048,8192",
    clients: Annotated[
        str,
        typer.Option(
            metavar="<int,...>", help=("Numbers of clients on the concurrency ladder."), rich_help_panel=COMMON
        ),
    ] = "4,16,64",
    saturated: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of clients in the saturated loop, or 0 for none. [default: 1.25 max_num_seqs]"
        ),
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt length for the ladder and the saturated loop.")] = 1024,
    output: Annotated[int, typer.Option(min=2, help="Output length. The idle measurement uses half of it.")] = 256,
    repeats: Annotated[int, typer.Option(min=1, help="Number of repetitions of the whole measurement.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Requests per client. A loop has at least 40.")] = 10,
    idle_requests: Annotated[
        int, typer.Option(min=2, help="Number of requests per prompt length while the server is idle.")
    ] = 16,
    chat: Annotated[bool, typer.Option("--chat", help="Use /v1/chat/completions instead of /v1/completions.")] = False,
    timeout: Annotated[float, typer.Option(min=0.01, help="Timeout of one answer in seconds.")] = 300.0,
    key_variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the API key of the server.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random lengths.")] = 0,
    client: Annotated[
        str, typer.Option(help="Client that sends requests: own, aiperf or vllm-bench (if installed).")
    ] = "own",
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer for aiperf and vllm-bench: a name or folder. [default: the model's tokenizer]"),
    ] = None,
) -> None:
    """Measure a running server: TTFT and TPOT, idle and under load.

    The commands `accuracy`, `validate` and `calibrate host` read the files.
    """
    import asyncio
    import datetime

    from servesim.cli.measure_short import conclude, short_plan
    from servesim.experiments.measure import files
    from servesim.experiments.measure.clients import NAMES, Client
    from servesim.experiments.measure.short import check
    from servesim.experiments.measure.startup import read_flags, read_log, together
    from servesim.experiments.measure.study import Plan
    from servesim.experiments.measure.study import measure as run
    from servesim.experiments.measure.wire import Address
    from servesim.hardware import Gpu

    key = _key(key_variable)
    address = Address.parse(url, key)
    if client not in NAMES:
        raise UserError(f"--client {client}: unknown{suggest(client, NAMES)}")
    if client == "own" and tokenizer is not None:
        raise UserError("--tokenizer is for aiperf and vllm-bench; --client own uses the server's token counts")
    if client != "own":
        Client.find(client, "", key)
    name = Gpu.load(gpu).name if not gpu.endswith((".yaml", ".yml")) else gpu
    if dtype is not None and dtype not in files.FORMATS:
        raise UserError(f"--dtype {dtype}: unknown{suggest(dtype, files.FORMATS)}")
    files.refuse(out)
    told = together(*([read_flags(flags)] if flags else []), *([read_log(log)] if log else []))
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    plan = Plan(
        idle=_lengths("--idle", idle),
        clients=_lengths("--clients", clients),
        saturated=saturated,
        prompt=prompt,
        output=output,
        idle_requests=idle_requests,
        per_client=requests,
        repeats=repeats,
        minutes=minutes,
        seed=seed,
    )
    plan = short_plan(given, minutes, seed) if short else plan

    def start(points: Sequence[Point], facts: Facts) -> None:
        _tell_start(facts)
        if short:
            check(points, facts, _labels(facts, model, name, tp, dtype))

    found = asyncio.run(
        run(
            address,
            plan,
            served_name=served_name,
            chat=chat,
            timeout_s=timeout,
            told=told,
            client=None if client == "own" else lambda name: Client.find(client, tokenizer or model or name, key),
            on_start=start,
            on_run=Teller(),
        )
    )
    labels = _labels(found.facts, model, name, tp, dtype)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    files.write(out, found, labels, date)
    lines = conclude(found, labels, date, out) if short else [f"written to {out}: {len(found.runs)} cells"]
    for note in found.notes:
        typer.echo(f"note: {note}", err=short)
    for fact in ("engine_version", "num_gpu_blocks", "max_num_seqs"):
        if fact not in found.facts:
            typer.echo(f"note: {fact} is not known (specify --log or --flags)", err=short)
    for line in lines:
        typer.echo(line)


def _labels(facts: Facts, model: str | None, gpu: str, tp: int | None, dtype: str | None) -> dict[str, Any]:
    label = model or str(facts.get("model", ""))
    return {
        "model": label,
        "gpu": gpu,
        "tp": tp or int(facts.get("tensor_parallel_size", 1)),
        "dtype": dtype or _weights(label, facts),
    }


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable, "")
    if not value or not value.isprintable():
        raise UserError(f"--key-variable {variable}: not set in the environment, or empty")
    return value


def _lengths(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() and 0 < int(word) < 1 << 30 for word in words):
        raise UserError(f"{option} {text}: must be whole numbers separated by commas, such as 8,32")
    return tuple(int(word) for word in words)


def _weights(model: str, facts: dict[str, Any]) -> str:
    """Return the format of the weights from the quantization setting or, if it is not set, from the model's name."""
    told = f"{facts.get('quantization', '')} {model}".lower()
    if any(word in told for word in ("awq", "gptq", "int4", "w4a16")):
        return "int4"
    return "fp8" if "fp8" in told else "bf16"


def _tell_start(facts: Facts) -> None:
    known = ", ".join(f"{key} {value}" for key, value in sorted(facts.items()) if key != "cudagraph_capture_sizes")
    typer.echo(f"server: {known}", err=True)


class Teller:
    """Progress on stderr, one line per loop."""

    def __init__(self) -> None:
        self._done = 0

    def __call__(self, run: Measured, total: int) -> None:
        """Record that one more loop is done."""
        from servesim.experiments.measure.loops import means

        self._done += 1
        ttft, tpot = means(run.answers)
        figures = f"TTFT {ttft:,.1f} ms, TPOT {tpot:,.2f} ms, {len(run.answers)} requests"
        typer.echo(f"[{self._done}/{total}] {run.name}: {figures}", err=True)
