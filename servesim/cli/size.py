"""`servesim size`: the memory that a model needs, and the GPUs that hold it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.errors import UserError
from servesim.parsing import names, whole_numbers

SIZE_EXAMPLES = """
\b
Examples:
  servesim size llama-3.1-70b
  servesim size llama-3.1-8b qwen3-8b --gpu l40s,h100 --weights bf16,fp8 --context 32768 --sequences 16
  servesim size llama-2-70b --kv-heads 64 --context 32000          # what if it had multi-head attention
  servesim size llama-2-70b --set use_cla=true --set cla_share_factor=2 --set sliding_window=4096
  servesim size deepseek-v3 --gpu h200 --tp 8 --kv-dtype fp8 --json
  servesim size qwen3-8b qwen3-32b --sequences 64 --out size.html
"""


NO_BARS = (
    "KV blocks have no error bars because they are within 1.1 % of the numbers that six recorded vLLM servers "
    "reported at startup"
)


def size(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Bundled models, or config.json files.")],
    gpu: Annotated[
        str | None, typer.Option(help="GPUs or YAML data sheets, comma-separated.", show_default="all known")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weight formats, comma-separated: fp32, bf16, fp16, fp8, int8, int4, mxfp4, nf4, int3, "
            "ternary. For GGUF files: q8_0, q6_k, q5_k_m, q4_k_m, q2_k.",
            show_default="several",
        ),
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(help="KV cache format: fp32, bf16, fp16, fp8, int8, int4, or auto (bf16).")
    ] = "bf16",
    context: Annotated[int, typer.Option(help="Tokens per sequence.")] = 4096,
    sequences: Annotated[int, typer.Option(help="Number of sequences in memory at the same time.")] = 1,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.")] = 16,
    tp: Annotated[
        str | None,
        typer.Option(
            help="Numbers of GPUs, comma-separated.", show_default="the smallest of 1, 2, 4, 8 that has room for it"
        ),
    ] = None,
    memory_utilization: Annotated[float, typer.Option(help="Fraction of a GPU's memory that the engine uses.")] = 0.92,
    kv_heads: Annotated[int | None, typer.Option(help="Assume this number of KV heads.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config.json. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Page to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with exact byte counts.")] = False,
) -> None:
    """Show how much memory a model needs and which GPUs fit it.

    The command shows KV bytes per token and layer, weights by format, and everything else in a GPU's memory. Memory
    is divided as in vLLM at startup: weights, the peak of a profile run, CUDA graphs, and KV blocks in the rest.
    """
    from servesim.hardware import Gpu, gpu_names
    from servesim.hardware.footprint import Load, changed, footprint, kv_format
    from servesim.run.result_files import to_json

    if out is not None:
        from servesim.cli.report import page_file

        page_file(out)
    load = Load(context, sequences, kv_format(kv_dtype), block_size, memory_utilization)
    settings = _settings(assignments or []) | ({} if kv_heads is None else {"num_key_value_heads": kv_heads})
    gpus = [Gpu.load(name) for name in (gpu_names() if gpu is None else names("--gpu", gpu))]
    degrees = whole_numbers("--tp", tp) if tp is not None else []
    formats = names("--weights", weights) if weights is not None else []
    found = [footprint(changed(name, settings), gpus, load, formats, degrees) for name in models]
    if out is not None:
        from servesim.reports.files import writing
        from servesim.reports.size_page import size_page

        with writing(out) as file:
            file.write(size_page(found, [NO_BARS]).html())
    if as_json:
        sys.stdout.write(to_json({"models": found, "notes": [NO_BARS]}))
        return
    for one in found:
        _print(one)
    if out is not None:
        typer.echo(f"written to {out}", err=True)


def _settings(assignments: list[str]) -> dict[str, Any]:
    import yaml

    found = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"--set {text}: write KEY=VALUE")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {text}: the value is not valid YAML") from None
    return found


def _print(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    from servesim.cli.console import open_console

    console, load, kv = open_console(), found["load"], found["kv"]
    heads = f"{found['num_heads']} heads" + ("" if "MLA" in found["attention"] else f" of {found['head_dim']}")
    console.print(f"{found['model']}: {found['params'] / 1e9:.2f} billion weights", style="bold")
    console.print(f"{found['num_layers']} layers, {heads}, {found['attention']}{_kinds(kv['layers'])}")
    table = Table(f"KV cache in {kv['dtype']}", "numbers", "size", box=None, header_style="bold")
    table.add_row(
        "a token in one layer", f"{kv['elements_per_token_per_layer']:,}", f"{kv['bytes_per_token_per_layer']:,} B"
    )
    keep = sum(kind["layers"] for kind in kv["layers"] if kind["keeps"])
    table.add_row(
        f"in all {keep} layers that store it",
        f"{keep * kv['elements_per_token_per_layer']:,}",
        f"{kv['bytes_per_token']:,} B",
    )
    table.add_row(
        f"{load['sequences']:,} x {load['context']:,} tokens", f"{kv['blocks']:,} blocks", gigabytes(kv["bytes"])
    )
    _right(console, table)
    table = Table("weights", "bits", "all in it", "as loaded", box=None, header_style="bold")
    for row in found["weights"]:
        table.add_row(
            row["format"],
            f"{row['bits']:.2f}".rstrip("0").rstrip("."),
            gigabytes(row["all_bytes"]),
            gigabytes(row["loaded_bytes"]),
        )
    _right(console, table)
    of = f"sequences of {load['context']:,}"
    table = Table("GPU", "weights", "GPUs", "KV blocks", "KV tokens", of, "", box=None, header_style="bold")
    for row in found["fits"]:
        numbers = [f"{row[key]:,}" for key in ("num_blocks", "kv_tokens", "sequences")]
        enough = row["sequences"] >= load["sequences"]
        table.add_row(
            row["gpu"], row["weights"], str(row["tp"]), *numbers, "" if enough else row["reason"] or "too few"
        )
    _right(console, table)
    console.print(f"note: {NO_BARS}", style="dim")
    if load["context"] > found["max_position"]:
        console.print(f"note: the model supports {found['max_position']:,} positions", style="dim")


def _right(console: Any, table: Any) -> None:
    for column in table.columns[1:]:
        column.justify = "right" if column.header else "left"
        column.no_wrap = bool(column.header)
    console.print(table)


def _kinds(kinds: list[Mapping[str, Any]]) -> str:
    """Describe layers that are not all of the same kind."""
    parts = []
    for kind in kinds:
        if not kind["keeps"]:
            parts.append(f"{kind['layers']} layers reuse the KV of an earlier layer")
        elif kind["window"]:
            parts.append(f"{kind['layers']} layers keep a window of {kind['window']:,} tokens")
    return "".join(f"; {part}" for part in parts)


def gigabytes(size: float) -> str:
    """Return a size in units of 10^9 bytes, with four digits."""
    return f"{size / 1e9:#.4g} GB" if size < 1e12 else f"{size / 1e9:,.0f} GB"
