"""Scenarios for measured cells, built from `recipes.yaml`, the only place that defines what labels mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from servesim.errors import UserError
from servesim.experiments.accuracy.apart import settings_apart
from servesim.experiments.accuracy.cells import CONFIGS, Cell, package_folder
from servesim.experiments.accuracy.commands import CONTRADICTION, check_loop, settings_of
from servesim.experiments.recording import known_model
from servesim.hardware import bundled_models, gpu_names, model_named
from servesim.run.presets import preset_settings
from servesim.versions import recorded_engine

NOMINAL = (128, 1024, 2000, 4000, 32000)
"""Prompt lengths used with `--dataset-name random` in the runs described by commands; all others are conversations."""
_MEASURED = re.compile(r"measured=(\d{4}-\d\d-\d\d)")
FILE = Path(__file__).with_name("recipes.yaml")


@dataclass(frozen=True)
class Recipe:
    """Settings of a scenario (servesim.simulate's keywords), and the mean of the output lengths they draw, in
    tokens."""

    settings: dict[str, Any]
    output_mean: float
    waves: int = 0
    """Number of turns per client that were measured if fewer requests are simulated than were sent
    (servesim.experiments.accuracy.apart), or 0 if all are simulated."""


@cache
def recipes() -> dict[str, Any]:
    """Read the recipes."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def source_of(cell: Cell) -> dict[str, Any]:
    """Return the recipes' entry for the cell's source: its author, and its length ranges as fractions of the nominal
    lengths."""
    return next(entry for entry in recipes()["sources"] if entry["match"] in cell.source)


def laboratory_of(cell: Cell) -> str:
    """Return who measured a row of a table of labels; empty for recordings and runs described by commands."""
    labels = cell.run is None and cell.flags is None and cell.settings is None
    return str(source_of(cell)["name"]).partition(",")[0] if labels else ""


def output_mean(cell: Cell) -> float:
    """Return the mean output length that clients requested, in tokens; for a recorded run, the recorded length."""
    if cell.run is not None or cell.flags is not None:
        return float(cell.osl)
    return cell.osl * float(sum(source_of(cell)["output"])) / 2


def recipe(cell: Cell, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe for replaying a cell. `changes` are dotted settings that override the recipe's own. Raise
    UserError with the reason if the cell cannot be replayed."""
    found = _recipe(cell)
    _put(found.settings, dict(changes or {}))
    return found


def _recipe(cell: Cell) -> Recipe:
    if cell.mode != "agg" and cell.sides is None:
        raise UserError("prefill and decode on separate servers, whose numbers are unknown")
    if cell.pp > 1 and cell.flags is None:
        raise UserError(f"pipeline of {cell.pp} stages")
    if cell.sides is None and cell.gpus > cell.tp * max(cell.dp, 1) * max(cell.pp, 1):
        raise UserError(f"experts over {cell.gpus} GPUs, attention over {cell.tp * max(cell.dp, 1)}")
    if cell.source.startswith(CONTRADICTION):
        raise UserError("the run's heading and its command name different models or flags")
    own = recipes()["models"].get(cell.model, {})
    own = own | own.get("as", {}).get(_weights(cell), {})
    if cell.flags is not None:
        return _of_command(cell, own)
    engine = _of("engines", cell.engine, "engine")
    source, model, per = source_of(cell), _model(cell.model, own), recipes()["requests"]
    settings: dict[str, Any] = {
        "trace": f"synth:prompt={_range(source['prompt'], cell.isl)},output={_range(source['output'], cell.osl)}",
        "requests": cell.requests or max(per["per_client"] * cell.concurrency, per["at_least"]),
        "rate": "inf",
        "clients": {"max_concurrency": cell.concurrency},
        "model": model,
        "gpu": _gpu(cell.gpu, cell.gpu if cell.gpu in gpu_names() else ""),
        "tp": max(cell.tp, 1),
        **_ranks(cell),
        "dtype": own.get("dtype") or _of("weights", _weights(cell), "format of weights"),
        "preset": engine["preset"],
    }
    if cell.sides is not None:
        table = recipes()["apart"]
        if stated := _comparable(
            engine["preset"], "" if cell.engine in table["runtimes"] else cell.version.lstrip("v")
        ):
            settings["engine"] = stated
        found, waves = settings_apart(cell, cell.sides, table)
        return Recipe(settings | found, output_mean(cell), waves)
    if cell.settings is not None:
        return _of_measured(cell, settings)
    if "scheduler" in engine:
        settings["scheduler"] = dict(engine["scheduler"])
        if own.get("max_num_seqs") == "concurrency":
            settings["scheduler"]["max_num_seqs"] = max(cell.concurrency, 2)
    if limits := _limits(cell, own, source) | _scripted(cell, own, source["name"]):
        preset = preset_settings(engine["preset"])["scheduler"]
        settings["scheduler"] = {**preset, **settings.get("scheduler", {}), **limits}
    if around := _engine(cell, own, engine["preset"]):
        settings["engine"] = around
    if kv_dtype := _kv_dtype(cell, own, engine, source["name"]):
        settings["kv_dtype"] = kv_dtype
    for script in _dated(cell, own, source["name"]):
        for key, value in script.items():
            known = settings.get(key) or (preset_settings(engine["preset"])["scheduler"] if key == "scheduler" else {})
            settings[key] = {**known, **value} if isinstance(value, dict) else value
    return Recipe(settings, output_mean(cell))


def _weights(cell: Cell) -> str:
    """Return the label of the weight format. For disaggregated prefill and decode, derive it from the precision if
    missing."""
    return cell.weights or (recipes()["apart"]["precisions"].get(cell.precision, "") if cell.sides else "")


def _ranks(cell: Cell) -> dict[str, int]:
    """Return the number of data-parallel ranks, and the number of GPUs that share the experts if that is neither one
    nor all."""
    found = {"dp": cell.dp} if cell.dp > 1 else {}
    return found | ({"ep": cell.ep} if cell.ep not in (0, 1, cell.tp * max(cell.dp, 1)) else {})


def _of_measured(cell: Cell, settings: dict[str, Any]) -> Recipe:
    """Return the recipe of a cell that states its server's settings, without using settings from other sources."""
    if stated := _comparable(settings["preset"], cell.version.lstrip("v")):
        settings["engine"] = stated
    _put(settings, dict(cell.settings or ()))
    return Recipe(settings, output_mean(cell))


def _put(settings: dict[str, Any], dotted: dict[str, Any]) -> None:
    """Add dotted settings. Scheduler settings extend those of the preset's scheduler."""
    for key, value in dotted.items():
        outer, dot, inner = key.partition(".")
        settings[outer] = {**settings.get(outer, {}), inner: value} if dot else value
    if "scheduler" in settings:
        settings["scheduler"] = {**preset_settings(settings["preset"])["scheduler"], **settings["scheduler"]}


_BUDGET = {"trtllm": ("max_bs", "max_num_tokens"), "vllm": ("max_num_seqs", "max_num_batched_tokens")}
"""Schedulers' names for the maximum number of sequences and of tokens per step."""


def _limits(cell: Cell, own: dict[str, Any], source: dict[str, Any]) -> dict[str, int]:
    """Return the maximum number of sequences and tokens per step if the source's scripts or rules state them."""
    if cell.engine in _BUDGET and "prompt_and" in source:
        sequences, tokens = _BUDGET[cell.engine]
        most = cell.concurrency + cell.isl + source["prompt_and"]
        return {sequences: cell.concurrency, tokens: most + -most % source["multiple_of"]}
    if cell.engine != "trtllm" or "max_num_tokens" not in own:
        return {}
    return {"max_num_tokens": own["max_num_tokens"]} | (
        {"max_bs": cell.concurrency} if own.get("max_bs") == "concurrency" else {}
    )


def _scripted(cell: Cell, own: dict[str, Any], source: str) -> dict[str, int]:
    """Return the scheduler settings used in the source's scripts."""

    def number(value: Any) -> int:
        if isinstance(value, str):
            return int(value.removesuffix(" prompts")) * cell.isl
        if isinstance(value, dict):
            return int(value[max(clients for clients in value if clients <= max(cell.concurrency, 1))])
        return int(value)

    found = own.get("scheduler", {}).get(source, {}).get(cell.engine, {}).get(cell.gpu, {})
    return {name: number(value) for name, value in found.items()}


def _kv_dtype(cell: Cell, own: dict[str, Any], engine: dict[str, Any], source: str) -> str | None:
    """Return the KV format: the model's for this source, engine and GPU if stated, else the engine's for this weight
    format."""
    by_gpu = own.get("kv_dtype", {}).get(source, {}).get(cell.engine, {})
    found: str | None = by_gpu.get(cell.gpu, engine.get("kv_dtype", {}).get(cell.weights))
    return found


def _dated(cell: Cell, own: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """Return the settings that the source's scripts had, some only around the day of the measurement (`scripts`; first
    and last day included)."""
    scripts = own.get("scripts", {}).get(source, {}).get(cell.engine, {}).get(cell.gpu, ())
    found = _MEASURED.search(cell.source)
    return [
        {key: value for key, value in script.items() if key not in ("from", "to")}
        for script in scripts
        if not {"from", "to"} & script.keys()
        or (found and script.get("from", "") <= found[1] <= script.get("to", "9999"))
    ]


def version_of(cell: Cell) -> tuple[str, bool]:
    """Return the version of a cell's engine, or an empty string if unknown, and whether it was inferred from the date
    of the measurement."""
    if cell.version:
        return cell.version.lstrip("v"), False
    if found := _MEASURED.search(cell.source):
        for entry in recipes()["versions"].get(cell.engine, ()):
            if entry["from"] <= found[1] <= entry["to"]:
                return str(entry["version"]), True
    return "", False


def _engine(cell: Cell, own: dict[str, Any], preset: str) -> dict[str, Any]:
    """Return the engine settings other than policies, including the version if a comparable one is known."""
    found: dict[str, Any] = dict(source_of(cell).get("engine", {}).get(cell.engine, {}))
    found |= _comparable(preset, version_of(cell)[0])
    if cell.ep == cell.tp * max(cell.dp, 1) > 1 or (cell.tp > 1 and cell.gpu in own.get("expert_parallel_on", ())):
        found["enable_expert_parallel"] = True
    if preset == "vllm" and "gpu_memory_utilization" in own:
        found["gpu_memory_utilization"] = own["gpu_memory_utilization"]
    return found


def _comparable(preset: str, version: str) -> dict[str, str]:
    """Return the setting of an engine's version, or none if there is none or no comparable one is known."""
    return {"version": version} if version and recorded_engine(f"{preset} {version}") is not None else {}


def _of_command(cell: Cell, own: dict[str, Any]) -> Recipe:
    """Return the recipe of a run described by its command: all requests are sent at the start, unless fewer clients
    than requests are stated."""
    table, preset = recipes()["commands"], _of("engines", cell.engine, "engine")["preset"]

    def lengths(mean: int) -> str:
        return str(mean) if nominal(cell) else f"lognormal(mean={mean},{table['conversations']})"

    settings: dict[str, Any] = {
        "trace": f"synth:prompt={lengths(cell.isl)},output={lengths(cell.osl)}",
        "requests": cell.requests,
        "rate": "inf",
        "model": _model(cell.model, own),
        "gpu": _gpu(cell.gpu, cell.gpu),
        "tp": cell.tp,
        "pp": cell.pp,
        "dtype": own.get("dtype") or _published(cell) or _of("weights", cell.weights, "format of weights"),
        "preset": preset,
        **_ranks(cell),
        "engine": {
            **({"enable_expert_parallel": True} if cell.ep == cell.tp * max(cell.dp, 1) > 1 else {}),
            **_comparable(preset, cell.version),
        },
    }
    if cell.concurrency < cell.requests:
        check_loop(cell)
        settings["clients"] = {"max_concurrency": cell.concurrency}
    _put(settings, settings_of(cell))
    return Recipe(settings, float(cell.osl))


def _published(cell: Cell) -> str | None:
    """Return the format that a model is published in, for a command that names none."""
    found = None if cell.weights else model_named(cell.model)
    return found.dtype if found is not None else None


def nominal(cell: Cell) -> int:
    """Return the nominal prompt length of a run described by its command, or 0 for conversations."""
    return next((length for length in NOMINAL if abs(cell.isl / length - 1) < 0.01), 0)


def _of(table: str, label: str, what: str) -> Any:
    known = recipes()[table]
    if label not in known:
        raise UserError(f"{what} {label or '(not stated)'}")
    return known[label]


def _gpu(label: str, default: str = "") -> str:
    name = str(recipes()["gpus"].get(label) or default or _of("gpus", label, "GPU"))
    if name not in gpu_names():
        raise UserError(f"GPU {name}: no data sheet is bundled")
    return name


def _model(label: str, own: dict[str, Any]) -> str:
    """Return the bundled model that a label names, its `config.json` in the installed aiconfigurator-core, or a name
    whose shapes are those of a bundled model with some keys changed."""
    name = own.get("model") or known_model(label)
    if name in bundled_models():
        return str(name)
    folder = package_folder()
    if folder is not None:
        config = folder / CONFIGS / f"{own.get('config', label).replace('/', '--')}_config.json"
        if config.is_file():
            return str(config)
    if name is not None and model_named(name) is not None:
        return str(name)
    more = "" if folder is not None else "; the silicon extra, which has more configurations, is not installed"
    raise UserError(f"model {label}: not bundled{more}")


def _range(share: list[float], nominal: int) -> str:
    low, high = (max(1, int(part * nominal + 1e-9)) for part in share)
    return str(low) if low == high else f"uniform({low},{high})"
