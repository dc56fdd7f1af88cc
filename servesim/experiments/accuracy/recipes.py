"""Scenarios for measured cells, built from `recipes.yaml`, the only place that defines what labels mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from servesim.errors import UserError
from servesim.experiments.accuracy.apart import settings_apart
from servesim.experiments.accuracy.cells import CONFIGS, Cell, package_folder
from servesim.experiments.accuracy.commands import CONTRADICTION, check_loop, settings_of
from servesim.experiments.recording import known_model
from servesim.hardware import bundled_models, gpu_names, model_named
from servesim.run.presets import preset_settings
from servesim.shipped import shipped_yaml
from servesim.versions import recorded_engine

NOMINAL = (128, 1024, 2000, 4000, 32000)
"""Prompt lengths used with `--dataset-name random` in the runs described by commands; all others are conversations."""
_MEASURED = re.compile(r"measured=(\d{4}-\d\d-\d\d)")


@dataclass(frozen=True)
class Recipe:
    """Settings of a scenario (servesim.simulate's keywords)."""

    settings: dict[str, Any]
    waves: int = 0
    """Number of turns per client that were measured if fewer requests are simulated than were sent
    (servesim.experiments.accuracy.apart), or 0 if all are simulated."""


@cache
def recipes() -> dict[str, Any]:
    """Read the recipes."""
    loaded: dict[str, Any] = shipped_yaml("servesim.experiments.accuracy", "recipes.yaml")
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
    engine, waves = _of("engines", cell.engine, "engine"), 0
    settings: dict[str, Any] = {
        "rate": "inf",
        "model": _model(cell.model, own),
        "gpu": _gpu(cell),
        "tp": max(cell.tp, 1),
        "pp": max(cell.pp, 1),
        "dtype": own.get("dtype") or _published(cell) or _of("weights", _weights(cell), "format of weights"),
        "preset": engine["preset"],
        "engine": _engine(cell, engine["preset"]),
        **_ranks(cell),
        **_load(cell),
    }
    if cell.flags is not None:
        stated = [settings_of(cell)]
    elif cell.sides is not None:
        apart, waves = settings_apart(cell, cell.sides, recipes()["apart"])
        stated = [apart]
    elif cell.settings is not None:
        stated = [dict(cell.settings)]  # and none of other sources' scripts
    else:
        stated = _scripts(cell, own, engine)
    for change in (*stated, changes or {}):
        _put(settings, change)
    return Recipe(settings, waves)


def _load(cell: Cell) -> dict[str, Any]:
    """Return the requests and clients of a cell: those of its source or, for a run described by its command, all
    requests sent at the start, unless fewer clients than requests are stated."""
    if cell.flags is None:
        source, per = source_of(cell), recipes()["requests"]
        prompt, output = _range(source["prompt"], cell.isl), _range(source["output"], cell.osl)
        requests = cell.requests or max(per["per_client"] * cell.concurrency, per["at_least"])
    else:
        drawn = f"lognormal(mean={{}},{recipes()['commands']['conversations']})"
        prompt, output = (str(mean) if nominal(cell) else drawn.format(mean) for mean in (cell.isl, cell.osl))
        requests = cell.requests
    found: dict[str, Any] = {"trace": f"synth:prompt={prompt},output={output}", "requests": requests}
    if cell.flags is None or cell.concurrency < requests:
        check_loop(cell)
        found["clients"] = {"max_concurrency": cell.concurrency}
    return found


def _weights(cell: Cell) -> str:
    """Return the label of the weight format. For disaggregated prefill and decode, derive it from the precision if
    missing."""
    return cell.weights or (recipes()["apart"]["precisions"].get(cell.precision, "") if cell.sides else "")


def _ranks(cell: Cell) -> dict[str, int]:
    """Return the number of data-parallel ranks, and the number of GPUs that share the experts if that is neither one
    nor all."""
    found = {"dp": cell.dp} if cell.dp > 1 else {}
    return found | ({"ep": cell.ep} if cell.ep not in (0, 1, cell.tp * max(cell.dp, 1)) else {})


def _engine(cell: Cell, preset: str) -> dict[str, Any]:
    """Return whether experts are spread over all GPUs, and the version of the engine if a comparable one is known."""
    unknown = cell.sides is not None and cell.engine in recipes()["apart"]["runtimes"]
    version = "" if unknown else version_of(cell)[0]
    over_all = cell.sides is None and cell.ep == cell.tp * max(cell.dp, 1) > 1
    found: dict[str, Any] = {"enable_expert_parallel": True} if over_all else {}
    return found | ({"version": version} if version and recorded_engine(f"{preset} {version}") is not None else {})


def _put(settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Add settings: dotted ones, and sections key by key. Scheduler settings extend those of the preset's scheduler."""
    for key, value in changes.items():
        outer, dot, inner = key.partition(".")
        section = {inner: value} if dot else value
        settings[outer] = {**settings.get(outer, {}), **section} if isinstance(section, dict) else section
    if "scheduler" in settings:
        settings["scheduler"] = {**preset_settings(settings["preset"])["scheduler"], **settings["scheduler"]}


def _scripts(cell: Cell, own: dict[str, Any], engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings that the source's scripts have, in the order in which they override each other."""
    source = source_of(cell)

    def stated(what: str) -> Any:
        """Return what the model's entry says for this source, engine and GPU, if anything."""
        return own.get(what, {}).get(source["name"], {}).get(cell.engine, {}).get(cell.gpu)

    around = dict(source.get("engine", {}).get(cell.engine, {}))
    if cell.tp > 1 and cell.gpu in own.get("expert_parallel_on", ()):
        around["enable_expert_parallel"] = True
    if engine["preset"] == "vllm" and "gpu_memory_utilization" in own:
        around["gpu_memory_utilization"] = own["gpu_memory_utilization"]
    scheduler = engine.get("scheduler", {}) | _limits(cell, own, source)
    scheduler |= {name: _number(cell, value) for name, value in (stated("scheduler") or {}).items()}
    kv_dtype = stated("kv_dtype") or engine.get("kv_dtype", {}).get(cell.weights)
    dated = _on_day(cell, stated("scripts"))
    return [
        {"engine": around, **({"scheduler": scheduler} if scheduler else {})},
        {"kv_dtype": kv_dtype} if kv_dtype else {},
        *({key: value for key, value in script.items() if key not in ("from", "to")} for script in dated),
    ]


_BUDGET = {"trtllm": ("max_bs", "max_num_tokens"), "vllm": ("max_num_seqs", "max_num_batched_tokens")}
"""Schedulers' names for the maximum number of sequences and of tokens per step."""


def _limits(cell: Cell, own: dict[str, Any], source: dict[str, Any]) -> dict[str, int]:
    """Return the maximum number of sequences and tokens per step if the source's scripts or rules state them."""
    names = _BUDGET.get(cell.engine, ())
    if names and "prompt_and" in source:
        most = cell.concurrency + cell.isl + source["prompt_and"]
        return dict(zip(names, (cell.concurrency, most + -most % source["multiple_of"]), strict=True))
    clients = max(cell.concurrency, 2 if cell.engine == "vllm" else 1)
    return {name: clients if own[name] == "concurrency" else own[name] for name in names if name in own}


def _number(cell: Cell, value: Any) -> int:
    """Return a number in the source's scripts, which may depend on the prompt or on the number of clients."""
    if isinstance(value, str):
        return int(value.removesuffix(" prompts")) * cell.isl
    if isinstance(value, dict):
        return int(value[max(clients for clients in value if clients <= max(cell.concurrency, 1))])
    return int(value)


def _on_day(cell: Cell, entries: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the entries without dates, and those around the day of the measurement (first and last day included)."""
    found = _MEASURED.search(cell.source)
    return [
        entry
        for entry in entries or ()
        if not {"from", "to"} & entry.keys() or (found and entry.get("from", "") <= found[1] <= entry.get("to", "9999"))
    ]


def version_of(cell: Cell) -> tuple[str, bool]:
    """Return the version of a cell's engine, or an empty string if unknown, and whether it was inferred from the date
    of the measurement."""
    if cell.version:
        return cell.version.lstrip("v"), False
    dated = _on_day(cell, recipes()["versions"].get(cell.engine))
    return (str(dated[0]["version"]), True) if dated else ("", False)


def _published(cell: Cell) -> str | None:
    """Return the format that a model is published in, for a command that names none."""
    found = None if cell.weights or cell.flags is None else model_named(cell.model)
    return found.dtype if found is not None else None


def nominal(cell: Cell) -> int:
    """Return the nominal prompt length of a run described by its command, or 0 for conversations."""
    return next((length for length in NOMINAL if abs(cell.isl / length - 1) < 0.01), 0)


def _of(table: str, label: str, what: str) -> Any:
    known = recipes()[table]
    if label not in known:
        raise UserError(f"{what} {label or '(not stated)'}")
    return known[label]


def _gpu(cell: Cell) -> str:
    own = cell.gpu if cell.flags is not None or cell.gpu in gpu_names() else ""
    name = str(recipes()["gpus"].get(cell.gpu) or own or _of("gpus", cell.gpu, "GPU"))
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
