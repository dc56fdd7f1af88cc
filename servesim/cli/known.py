"""`servesim settings`, `models` and `gpus`: the available settings, models and GPUs."""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from servesim.errors import UserError, suggest
from servesim.parsing import split_changes

if TYPE_CHECKING:
    from pydantic import BaseModel

SETTINGS_EXAMPLES = """
\b
Examples:
  servesim settings
  servesim settings max_num_seqs
  servesim settings sarathi
  servesim settings prefix cache --json
  servesim run --shape help
  servesim run --trace synth:help

In YAML, a setting is a key (engine: {block_size: 16}). On a command line, it is an option (--engine.block-size 16).
"""
MODELS_EXAMPLES = """
\b
Examples:
  servesim models
  servesim models llama --json
  servesim models qwen3-32b --matrix
  servesim models meta-llama/Llama-3.3-70B-Instruct

For any other decoder, give path/to/config.json, here as in --model.
"""
GPUS_EXAMPLES = """
\b
Examples:
  servesim gpus
  servesim gpus --json

For any other GPU, give a data sheet with these fields: --gpu my-gpu.yaml (docs/your-gpu.md).
"""
WIDTH = 100
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[WORD]...", help="Show only entries with all of these words.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document in the JSON format that all commands share."""
    from servesim.run.result_files import to_json

    sys.stdout.write(to_json(document))


def settings(words: Words = None, as_json: Json = False) -> None:
    """Search every setting of a run: its option, effect and default.

    With words, the search includes shape steps, keys of synthetic traces, presets, engines, policies, features, options
    of experiments, and flags of vLLM, SGLang and TensorRT-LLM by name.
    """
    from servesim.cli.other_names import all_flags, experiment_options
    from servesim.cli.parts import all_parts

    found = list(all_settings())
    if words:
        parts, options, flags = list(all_parts()), list(experiment_options()), list(all_flags())
        named = [one for one in flags if _spelt(one["key"]) == _spelt(f"flag {'-'.join(words).lstrip('-')}")]
        hits = [one for group in (found, parts, options) for one in matching(group, words)]
        found = sorted([*named, *hits], key=_inexact(words))
        found = found or refuse(words, [*all_settings(), *parts, *options, *flags], "setting", "settings")
    if as_json:
        print_json({"settings": found})
    else:
        print_settings(found)


def print_settings(found: Sequence[Mapping[str, Any]]) -> None:
    """Print settings or parts: key, default, option and description."""
    for one in found:
        of = f"  ({one['section']} {', '.join(one['policies'])})" if one["policies"] else ""
        default = "" if one["default"] is None else f"  [default: {one['default']}]"
        typer.echo(f"{one['key']}{default}{of}")
        alone = (
            f", or --{one['section']} {one['policies'][0]}:{one['key'].partition('.')[2]}=..."
            if one["policies"]
            else ""
        )
        typer.echo(f"    {one['option']}{alone}")
        for line in textwrap.wrap(one["doc"], WIDTH - 4):
            typer.echo(f"    {line}")


def all_settings() -> Iterator[dict[str, Any]]:
    """Yield each setting: key, option, section, type, default, doc, and the policies that have it."""
    from servesim.run.scenario import Scenario

    yield from _of_model(Scenario, "scenario", "")
    yield from _of_policies()


def _of_model(model: type[BaseModel], section: str, prefix: str) -> Iterator[dict[str, Any]]:
    from servesim.cli.options import Setting, type_name

    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from _of_model(field.annotation, name, f"{name}.")  # type: ignore[arg-type]
            continue
        key = f"{prefix}{name}"
        default = field.default.get("name") if isinstance(field.default, dict) else field.default
        yield {
            "key": key,
            "option": Setting(key, section, "").names[0],
            "section": section,
            "type": type_name(field.annotation),
            "default": None if field.is_required() else _shown(default),
            "doc": " ".join((field.description or "").replace("`", "").split()),
            "policies": [],
        }


def _of_policies() -> Iterator[dict[str, Any]]:
    """Return the parameters of policies; a parameter shared by several policies is listed once. Kinds of policies that
    no available feature serves are left out."""
    from servesim.cli.parameters import field_docs
    from servesim.contracts import REGISTRIES
    from servesim.run.scenario import Scenario

    for registry in [each for each in REGISTRIES if each.kind in Scenario.model_fields]:
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in registry.names():
            params = registry.resolve(name)[0].Params
            docs = field_docs(params)
            for field in dataclasses.fields(params):
                default = "" if field.default is dataclasses.MISSING else _shown(field.default) or "by GPU and model"
                doc = " ".join(docs.get(field.name, "").replace("`", "").split())
                alike.setdefault((field.name, str(field.type), default, doc), []).append(name)
        for (name, kind, default, doc), policies in sorted(alike.items()):
            yield {
                "key": f"{registry.kind}.{name}",
                "option": f"--{registry.kind}.{name.replace('_', '-')}",
                "section": registry.kind,
                "type": kind,
                "default": default or None,
                "doc": doc,
                "policies": policies,
            }


def _shown(default: Any) -> str | None:
    """Return a default as written in YAML, or None if there is none."""
    if default is None or default in ({}, []):
        return None
    return str(default).lower() if isinstance(default, bool) else str(default)


def matching(found: Sequence[dict[str, Any]], words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entries that have all the words in their key or their policies or, if there are none, in their key and
    description together. Entries whose key has the whole words come first."""
    wanted = [_spelt(word.lstrip("-")) for word in words]

    def has(one: Mapping[str, Any], *fields: str) -> bool:
        text = _spelt(" ".join(str(one.get(name, "")) for name in fields))
        return all(word in text for word in wanted)

    hits = [one for one in found if has(one, "key", "policies")] or [one for one in found if has(one, "key", "doc")]
    return sorted(hits, key=_inexact(words))


def _inexact(words: Sequence[str]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a sort key that puts entries with all the words, whole, in their key first."""
    wanted = {_spelt(word.lstrip("-")) for word in words}
    return lambda one: not wanted <= {*re.split(r"[ .]", _spelt(one["key"]))}


def refuse(words: Sequence[str], known: Sequence[Mapping[str, Any]], kind: str, command: str) -> NoReturn:
    """Raise UserError for words that no entry of this kind has together. The message suggests a name for a word that no
    entry has."""
    names = [f"{one['key']} {' '.join(one.get('policies', ()))}" for one in known]
    text = _spelt(" ".join([*names, *(one["doc"] for one in known)]))
    for word in words:
        if _spelt(word.lstrip("-")) not in text:
            near = suggest(word, {part for name in names for part in re.split(r"[ .]", name)})
            raise UserError(
                f"no {kind} has {word}" + (near if "did you mean" in near else f"; `servesim {command}` lists all")
            )
    raise UserError(f"no {kind} contains all of these words: {', '.join(words)}")


def _spelt(text: str) -> str:
    return text.lower().replace("-", "_")


def models(
    words: Words = None,
    as_json: Json = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Show how much is measured, by GPU, engine and weights.")
    ] = False,
) -> None:
    """List the bundled models: size, KV cache and context."""
    from servesim.hardware import ModelSpec, model_named

    names = _models_with(words or ())
    if matrix:
        _support([named.model if (named := model_named(name)) is not None else name for name in names], as_json)
        return
    found: list[dict[str, Any]] = []
    for name in names:
        spec, named = ModelSpec.load(name), model_named(name)
        dtype = named.dtype if named is not None and named.dtype is not None else spec.dtype
        found.append(
            {
                "name": name,
                "weight_bytes": spec.weight_bytes(dtype),
                "dtype": dtype,
                "layers": spec.num_layers,
                "experts": spec.experts.count if spec.experts else 0,
                "kv_bytes_per_token": spec.kv_bytes_per_token(),
                "max_position": spec.max_position,
            }
        )
    if as_json:
        print_json({"models": found})
        return
    rows = [
        (
            *(one["name"], f"{one['weight_bytes'] / 1e9:.1f} GB {one['dtype']}", f"{one['layers']}"),
            *(f"{one['experts'] or ''}", f"{one['kv_bytes_per_token'] / 1024:.0f}", f"{one['max_position']:,}"),
        )
        for one in found
    ]
    _table(("model", "weights", "layers", "experts", "KV KiB/token (bf16)", "context"), rows)


def _models_with(words: Sequence[str]) -> list[str]:
    """Return the bundled models with these words in their names or, if there are none, the one model that `--model`
    accepts for the word (a Hugging Face id or a file). Raise UserError if there is no such model."""
    from servesim.hardware import bundled_models, model_named

    names = [name for name in bundled_models() if all(word.lower() in name for word in words)]
    if not names and len(words) == 1:
        base, _ = split_changes(words[0])
        if model_named(base) is not None or Path(base).exists():
            return [words[0]]
    if not names:
        raise UserError(f"no bundled model has {' and '.join(words)} in its name; --model also accepts a config.json")
    return names


def _support(names: Sequence[str], as_json: bool) -> None:
    """Print the support matrix of models."""
    from servesim.cost.support import LEGEND, as_tables, matrix

    found = list(matrix(names))
    if as_json:
        print_json({"matrix": [dataclasses.asdict(one) for one in found]})
    else:
        sys.stdout.write(f"{LEGEND}\n\n{as_tables(found)}")


def gpus(as_json: Json = False) -> None:
    """List the GPUs and their kernel tables."""
    from servesim.hardware import Gpu, gpu_names

    found = [dataclasses.asdict(Gpu.load(name)) for name in gpu_names()]
    if as_json:
        print_json({"gpus": found})
        return
    rows = [
        (
            *(one["name"], one["description"], f"{one['memory_bytes'] / 2**30:.1f}", f"{one['bandwidth'] / 1e12:.2f}"),
            *(f"{one['flops'].get('bf16', 0) / 1e12:.0f}", f"{one['usd_per_hour']:.2f}", one["tables"] or "formula"),
        )
        for one in found
    ]
    _table(("GPU", "", "GiB", "TB/s", "TFLOP/s bf16", "$/h (assumed)", "priced by"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    from servesim.cli.console import open_console

    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    open_console().print(table)
