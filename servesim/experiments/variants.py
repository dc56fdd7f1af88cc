"""Variants to compare on one workload, and which of them are oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from servesim.contracts import REGISTRIES, schedulers
from servesim.contracts.section import policy_settings
from servesim.errors import UserError
from servesim.experiments.axes import Variant, load_grid, product
from servesim.experiments.replicates import WORKLOAD
from servesim.hardware import Gpu
from servesim.run.pools import pool_scenarios
from servesim.run.prices import price_of as gpu_hour_price
from servesim.run.scenario import Scenario, fleet_varies, own_features

T = TypeVar("T")


def own_features_of(variants: Sequence[Variant]) -> list[str]:
    """Return the names of a user's features that any variant has."""
    return list(dict.fromkeys(name for v in variants for name in own_features(v.settings.get("features"))))


def variants_of(scenarios: Sequence[str | Path | Mapping[str, Any]], axes: Mapping[str, Any]) -> list[Variant]:
    """Return every combination of the axes over every scenario."""
    given = [load_grid(s, axes) for s in scenarios] or [({}, dict(axes))]
    if len(given) == 1:
        return product(*given[0])
    names = [Path(s).stem if not isinstance(s, Mapping) else f"scenario {i + 1}" for i, s in enumerate(scenarios)]
    if len(set(names)) < len(names):
        names = [str(s) if not isinstance(s, Mapping) else name for s, name in zip(scenarios, names, strict=True)]
    found = []
    for name, (settings, lists) in zip(names, given, strict=True):
        for v in product(settings, lists):
            label = f"{name} / {v.label}" if v.label else name
            found.append(Variant(label, {"scenario": name, **v.axes}, v.settings))
    return found


def is_oracle(settings: Mapping[str, Any]) -> bool:
    """Return whether a policy among the settings receives the true output lengths."""
    for registry in REGISTRIES:
        if settings.get(registry.kind) is not None:
            name = policy_settings(settings[registry.kind])["name"]
            if name != "none" and "output_len" in getattr(registry.resolve(name)[0], "needs", ()):
                return True
    return False


def plans_ahead(settings: Mapping[str, Any]) -> bool:
    """Return whether each step is planned while the previous one runs."""
    scenario = Scenario.of(settings)
    scheduler = schedulers.resolve(scenario.scheduler["name"])[0]
    return scenario.engine.async_scheduling and scenario.pp == 1 and "async" in scheduler.supports


def price_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hourly price of all GPUs of a deployment ($; None if an autoscaler sets their number), and whether
    requests arrive at a rate that does not depend on the server. Return None and False if the settings are not a valid
    scenario."""
    try:
        scenario = Scenario.of(settings)
        usd = None if fleet_varies(scenario) else usd_with_all_up(scenario)
    except UserError:
        return {"usd_per_hour": None, "open_loop": False}
    clients = scenario.clients
    paced = scenario.rate != float("inf") and clients.max_concurrency is None and clients.max_sessions is None
    return {"usd_per_hour": usd, "open_loop": paced}


def usd_with_all_up(scenario: Scenario) -> float:
    """Return the hourly price of a deployment while none of its replicas are down."""
    pools = [pool.scenario for pool in pool_scenarios(scenario)]
    return sum(_gpu_hour(one) * one.tp * one.pp * one.dp * one.replicas for one in pools)


def usd_of_gpus(scenario: Scenario, gpus: int) -> float:
    """Return the hourly price of a number of GPUs of a deployment, of which some may be reserved."""
    return gpus * _gpu_hour(scenario, gpus)


def _gpu_hour(scenario: Scenario, gpus: int | None = None) -> float:
    return gpu_hour_price(Gpu.load(scenario.gpu), scenario.price, scenario.usd_per_gpu_hour, gpus)


def same_workload(variants: Sequence[Variant]) -> None:
    if len(variants) < 2:
        raise UserError(
            "compare: specify several values for an option, such as --scheduler static,vllm, or two scenarios"
        )
    for v in variants[1:]:
        for key in WORKLOAD:
            one, other = variants[0].settings.get(key), v.settings.get(key)
            if one != other:
                raise UserError(
                    f"compare: {variants[0].label} and {v.label} replay different workloads ({key}: {one} and "
                    f"{other}). Paired runs need the same workload, but servesim sweep can vary it."
                )


def named(variants: Sequence[Variant], label: str) -> int:
    found = [i for i, v in enumerate(variants) if label in (v.label, *v.label.split(" / "))]
    exact = [i for i, v in enumerate(variants) if label == v.label]
    if len(exact or found) != 1:
        raise UserError(
            f"baseline {label!r} is not one of the variants; choose from {'; '.join(v.label for v in variants)}"
        )
    return (exact or found)[0]


def put_first(items: Sequence[T], index: int) -> list[T]:
    """Return the items with the one at `index` first."""
    return [items[index], *items[:index], *items[index + 1 :]]


def shared_settings(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that are equal in all mappings."""
    return {k: v for k, v in sorted(settings[0].items()) if all(k in s and s[k] == v for s in settings)}
