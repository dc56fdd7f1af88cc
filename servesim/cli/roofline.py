"""`servesim roofline`: steps placed under a GPU's roofline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from servesim.errors import UserError
from servesim.parsing import whole_numbers
from servesim.sentinels import NOTHING

if TYPE_CHECKING:
    from servesim.cost.roofline import Roof, Steps

ROOFLINE_EXAMPLES = """
\b
Examples:
  servesim roofline --model llama-3.1-8b --gpu h100
  servesim roofline --model llama-3.1-70b --gpu h200 --tp 4 --batch 1,32,256 --context 4096 --prompt 512,8192
  servesim roofline --model llama-2-70b --gpu h100 --batch 1 --kernel-tables roofline --json
  servesim roofline result --out roofline.html
"""
DESCRIBING = ("tp", "dtype", "kv_dtype", "batch", "context", "prompt", "kernel_tables")
"""Options that describe steps."""


def roofline(
    given: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(metavar="RESULT", help="Result directory of the run whose steps are shown.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Bundled model, or a Hugging Face config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, or a YAML data sheet.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor parallelism: number of GPUs.")] = 1,
    dtype: Annotated[str, typer.Option(help="Weight format.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="KV cache format, or auto (bf16).")] = "bf16",
    batch: Annotated[str, typer.Option(help="Numbers of sequences in decode steps, comma-separated.")] = "1,16,64,256",
    context: Annotated[int, typer.Option(help="Context length of each sequence, in tokens.")] = 1024,
    prompt: Annotated[str, typer.Option(help="Numbers of tokens in prefill steps, comma-separated.")] = "1024",
    kernel_tables: Annotated[
        str | None,
        typer.Option(help="Folder of kernel tables. roofline and ideal use none.", show_default="the shipped ones"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page to write, or FILE.svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where steps lie under a GPU's roofline.

    For each step and operator, the command shows the arithmetic intensity, the bound, and the time from the roofline
    and from kernels. Batches are described by options or taken from the recorded steps of a run. The roofline comes
    from the data sheet: the larger of FLOPs over peak and bytes over bandwidth. Kernel times are measured values
    where the tables contain them.
    """
    from servesim.run.result_files import to_json

    if out is not None:
        from servesim.reports.files import refuse_foreign

        if out.suffix not in (".html", ".htm", ".svg"):
            raise UserError(f"--out {out}: must end in .html (a page) or .svg (the figure)")
        refuse_foreign(out)
    if folder is not None:
        if model is not None or gpu is not None:
            raise UserError("specify either a result directory or --model and --gpu, not both")
        for name in DESCRIBING:
            source = given.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UserError(f"--{name.replace('_', '-')} has no effect: a result directory has its own steps")
        from servesim.reports.roofline_page import steps_of_run

        roof, steps = steps_of_run(folder)
        warnings: list[str] = []
        notes = ["means over up to 300 rows of recorded steps of each kind, evenly spaced in GPU time"]
    else:
        roof = _roof(model, gpu, tp, dtype, kv_dtype, kernel_tables)
        [each] = whole_numbers("--context", str(context))
        counts = [(count, each) for count in _numbers("--batch", batch)]
        steps = list(_described(roof, counts, _numbers("--prompt", prompt)))
        warnings, notes = list(_too_large(roof, counts)), []
    if not steps:
        raise UserError("no step to show: specify --batch or --prompt")
    document = roof.describe(steps)
    document.update(warnings=warnings, notes=[*notes, *_notes(document)])
    if out is not None:
        from servesim.reports.roofline_page import write

        write(out, document, steps)
    if as_json:
        sys.stdout.write(to_json(document))
    else:
        _print(document, out)


def _roof(model: str | None, gpu: str | None, tp: int, dtype: str, kv_dtype: str, tables: str | None) -> Roof:
    from servesim.cost import build_cost_model
    from servesim.cost.roofline import Roof
    from servesim.hardware import Gpu, ModelSpec
    from servesim.hardware.footprint import kv_format

    if model is None or gpu is None:
        raise UserError("specify --model and --gpu, or a result directory")
    spec, card, kv_dtype = ModelSpec.load(model), Gpu.load(gpu), kv_format(kv_dtype)
    tables = None if tables in NOTHING else tables
    return Roof(
        spec, card, tp, dtype, kv_dtype, build_cost_model(spec, card, tp, dtype, kv_dtype=kv_dtype, tables=tables)
    )


def _described(roof: Roof, decodes: list[tuple[int, int]], prompts: list[int]) -> Iterator[Steps]:
    from servesim.cost.roofline import Steps, decode_step, prefill_step

    for count, context in decodes:
        steps = Steps(roof, f"decode {count:,} x {context:,}", "decode")
        steps.add(decode_step(count, context))
        yield steps
    for tokens in prompts:
        steps = Steps(roof, f"prefill {tokens:,}", "prefill")
        steps.add(prefill_step(tokens))
        yield steps


def _too_large(roof: Roof, decodes: list[tuple[int, int]]) -> Iterator[str]:
    """Return notes on steps that do not fit in the GPUs' memory; they are priced anyway."""
    from servesim.hardware.footprint import Load, fit

    gpus = f"{roof.tp} x {roof.gpu.name}"
    for count, context in decodes:
        found = fit(roof.model, roof.gpu, roof.tp, roof.dtype, Load(context, kv_dtype=roof.kv_dtype))
        if not found.num_blocks:
            yield f"the model does not fit on {gpus}: {found.reason}"
            return
        if found.sequences < count:
            yield f"decode {count:,} x {context:,}: only {found.sequences:,} sequences of this length fit on {gpus}"


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    shares = [step["by_formula"] for step in document["steps"]]
    if max(shares) > 0.005:
        low, high = _percent(min(shares)), _percent(max(shares))
        span = low if low == high else f"{low.removesuffix(' %')} to {high}"
        yield f"{span} of the kernel time is estimated by formula, not measured"
    operators = [one for step in document["steps"] for one in step["operators"]]
    above = ", ".join(dict.fromkeys(one["name"] for one in operators if (one["reached"] or 0) > 1.005))
    if above and min(shares) > 0.995:
        yield (
            f"above their roofline: {above}, because the formula counts only weights, while the roofline also counts "
            "inputs and outputs"
        )
    elif above:
        yield (
            f"above their roofline: {above}, because repeated measurements read small data from the GPU's cache, and "
            "because experts were measured with uneven routing, which uses fewer experts than the uniform routing "
            "assumed here"
        )


def _numbers(option: str, text: str) -> list[int]:
    """Return the listed numbers. If the option is empty, there are none, and its kind of step is omitted."""
    return whole_numbers(option, text) if text else []


def _print(document: Mapping[str, Any], out: Path | None) -> None:
    from rich.table import Table

    from servesim.cli.console import open_console

    console, d = open_console(), document
    console.print(f"{d['model']} {d['dtype']} on {d['tp']} x {d['gpu']}", style="bold")
    console.print(
        f"{d['peak_flops'] / 1e12:,.0f} TFLOP/s and {d['bandwidth'] / 1e12:.3g} TB/s per GPU: ridge at "
        f"{d['ridge']:,.0f} FLOP per byte"
    )
    table = Table("step", "FLOP/byte", "bound", "roofline ms", "kernels ms", "reached", box=None, header_style="bold")
    for step in d["steps"]:
        table.add_row(
            step["label"],
            f"{step['intensity']:,.1f}",
            step["bound"],
            milliseconds(step["roofline_ns"]),
            milliseconds(step["kernels_ns"]),
            _percent(step["reached"]),
        )
    _align(console, table, {0, 2})
    for title, cell in (("FLOP/byte", _intensity), ("kernels, ms and share of their roofline", _time)):
        console.print(f"\n{title}")
        console.print(_operators(d["steps"], cell))
    for note in (*d["warnings"], *d["notes"]):
        console.print(f"note: {note}", style="dim")
    if out is not None:
        console.print(f"written to {out}", style="dim")


def _operators(steps: list[Mapping[str, Any]], cell: Callable[[Mapping[str, Any]], str]) -> Any:
    from rich.table import Table

    names = dict.fromkeys(one["name"] for step in steps for one in step["operators"])
    table = Table(box=None, header_style="bold", collapse_padding=True, pad_edge=False)
    table.add_column("operator", no_wrap=True)
    for step in steps:
        table.add_column(step["label"], justify="right")
    by_step = [{one["name"]: one for one in step["operators"]} for step in steps]
    for name in names:
        cells = [cell(found[name]) if name in found else "" for found in by_step]
        if any(cells):
            table.add_row(name, *cells)
    return table


def _intensity(operator: Mapping[str, Any]) -> str:
    return f"{operator['intensity']:,.1f}" if operator["intensity"] else ""


def _time(operator: Mapping[str, Any]) -> str:
    share = f" {_percent(operator['reached']):>5}" if operator["reached"] else " " * 6
    return f"{milliseconds(operator['kernels_ns'])}{share}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def milliseconds(ns: float) -> str:
    """Return a time in ms with three digits and at most three decimals."""
    ms = ns / 1e6
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _align(console: Any, table: Any, left: set[int]) -> None:
    for i, column in enumerate(table.columns):
        column.no_wrap = True
        if i not in left:
            column.justify = "right"
    console.print(table)
