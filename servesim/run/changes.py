"""Notes on changed parts of a GPU's data sheet and of a model's config: each is named, with its effect in this run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from servesim.contracts import schedulers
from servesim.contracts.warn import Warn
from servesim.cost import TableCostModel
from servesim.cost.build import arithmetic
from servesim.hardware import Gpu, ModelSpec
from servesim.hardware.config import changed_config, model_fields
from servesim.hardware.model import read_config
from servesim.parsing import split_changes
from servesim.run.scenario import Scenario


def on_changes(
    scenario: Scenario, gpu: Gpu, model: ModelSpec, cost: TableCostModel, fitting_blocks: int | None
) -> Iterator[str]:
    """Yield the effect of each change to the data sheet and to the config. `scenario`: resolved; `gpu` and `model`:
    with the changes; `fitting_blocks`: KV blocks that fit in the GPU's memory."""
    name, changes = split_changes(scenario.gpu)
    sheet = Gpu.load(name)
    for key in changes:
        part, _, dtype = key.partition(".")
        old, new = (getattr(one, part) for one in (sheet, gpu))
        old, new = (old[dtype], new[dtype]) if dtype else (old, new)
        because = (
            "the data sheet has the same value" if old == new else _idle(scenario, gpu, model, key, fitting_blocks)
        )
        if because:
            yield Warn(f"gpu.{key}={_number(new)} has no effect: {because}. Remove this setting.")
            continue
        scaled = cost.tables is not None and (dtype or part.endswith("bandwidth"))
        how = f"; times measured on {sheet.name} are scaled by the ratio of rates, as for a new GPU" if scaled else ""
        yield f"gpu.{key}={_number(new)} instead of the data sheet's {_number(old)}{how}"
    yield from _model(scenario.model)


def _idle(scenario: Scenario, gpu: Gpu, model: ModelSpec, key: str, fitting_blocks: int | None) -> str | None:
    """Return the reason why a changed part of the data sheet has no effect, or None if it does have one."""
    alone, engine = scenario.tp * scenario.pp == 1, scenario.engine
    if key == "usd_per_hour" and scenario.usd_per_gpu_hour != gpu.usd_per_hour:
        return f"usd_per_gpu_hour={scenario.usd_per_gpu_hour:g} is specified"
    if key == "memory_bytes" and (engine.ignore_memory or engine.num_gpu_blocks != fitting_blocks):
        return "ignore_memory is on" if engine.ignore_memory else f"num_gpu_blocks={engine.num_gpu_blocks} is specified"
    if key == "nvlink_bandwidth" and alone:
        return "each replica has one GPU, so nothing is communicated"
    if key == "pcie_bandwidth" and (alone or gpu.nvlink_bandwidth):
        swaps = "swap" in schedulers.resolve(scenario.scheduler["name"])[0].supports
        return None if swaps else "this run transfers nothing over PCIe"
    if key == "tables" and scenario.kernel_tables is not None:
        return f"kernel_tables={scenario.kernel_tables} is specified"
    used = arithmetic(model, scenario.dtype, scenario.kv_dtype)
    if key.startswith("flops.") and key.removeprefix("flops.") not in used:
        return f"no operation runs in {key.removeprefix('flops.')}"
    return None


def _model(text: str) -> Iterator[str]:
    name, changes = split_changes(text)
    if not changes:
        return
    config, label = read_config(name)
    changed = changed_config(config, label, changes)
    fields = model_fields(changed, label)
    for key in changes:
        others = {k: v for k, v in changes.items() if k != key}
        without = changed_config(config, label, others)
        said = f"model.{key}={changed[key]}"
        if _same(fields, without, label):
            why = "the config has the same value" if key in config else "no shape depends on it"
            yield Warn(f"{said} has no effect: {why}. Remove this setting.")
        else:
            yield f"{said} instead of {f'{config[key]} in the config' if key in config else 'none in the config'}"


def _same(fields: dict[str, Any], config: dict[str, Any], label: str) -> bool:
    return model_fields(config, label) == fields


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
