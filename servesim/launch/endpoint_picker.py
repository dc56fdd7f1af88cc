"""Configuration of llm-d's endpoint picker: servesim's routers of llm-d, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.router import routers
from servesim.contracts.section import Settings
from servesim.launch.routers import typed

SCORERS = {
    "prefix_weight": "prefix-cache-scorer",
    "queue_weight": "queue-scorer",
    "kv_utilization_weight": "kv-cache-utilization-scorer",
    "running_weight": "running-requests-size-scorer",
    "load_aware_weight": "load-aware-scorer",
    "token_load_weight": "token-load-scorer",
    "active_request_weight": "active-request-scorer",
    "no_hit_lru_weight": "no-hit-lru-scorer",
    "session_weight": "session-affinity-scorer",
}
"""Plug-ins by weight."""
PRECISE = "precise-prefix-cache-scorer"
PARAMETERS = {"block_size": "blockSize", "lru_blocks": "lruCapacityPerServer"}
"""Parameters of the approximate prefix scorer by parameter of the router."""
_AROUND = ("single-profile-handler", "disagg-profile-handler", "pd-profile-handler", "always-disagg-pd-decider",
           "max-score-picker", "prefill-filter", "decode-filter", "prefill-header-handler")  # fmt: skip
"""Plug-ins that every configuration has."""


def picker_config(router: Mapping[str, Any], apart: bool) -> Settings | None:
    """Return the scheduler section of a service, or None for a router that is not llm-d's. `apart`: whether prefill
    is."""
    if router["name"] not in ("llm-d", "llm-d-precise"):
        return None
    params = routers.configured(router)[1]
    precise = router["name"] == "llm-d-precise"
    weights = {_scorer(key, precise): _number(getattr(params, key)) for key in SCORERS if getattr(params, key)}
    prefix = {there: getattr(params, here) for here, there in PARAMETERS.items() if not precise}
    plugins = [{"type": name, **({"parameters": prefix} if name == "prefix-cache-scorer" else {})} for name in weights]
    refs = [
        *({"pluginRef": name, "weight": weight} for name, weight in weights.items()),
        {"pluginRef": "max-score-picker"},
    ]
    names = ["prefill", "decode"] if apart else ["default"]
    filters = {name: [{"pluginRef": f"{name}-filter"}] if apart else [] for name in names}
    handlers = _apart_handlers() if apart else [{"type": "single-profile-handler"}]
    return {
        "config": {
            "inline": {
                "apiVersion": "llm-d.ai/v1alpha1",
                "kind": "EndpointPickerConfig",
                "plugins": [*handlers, *plugins, {"type": "max-score-picker"}],
                "schedulingProfiles": [{"name": name, "plugins": filters[name] + refs} for name in names],
            }
        }
    }


def _apart_handlers() -> list[Settings]:
    decider = "always-disagg-pd-decider"
    handler = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decider}}}
    return [{"type": decider}, handler, {"type": "prefill-filter"}, {"type": "decode-filter"}]


def _scorer(key: str, precise: bool) -> str:
    return PRECISE if key == "prefix_weight" and precise else SCORERS[key]


def _number(weight: float) -> float | int:
    return int(weight) if weight == int(weight) else weight


def read_picker(scheduler: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return the router of a scheduler section, and the plug-ins that are not understood. An empty section means the
    default router."""
    config = (scheduler.get("config") or {}).get("inline")
    if not isinstance(config, Mapping):
        return {"name": "llm-d"}, [f"router.scheduler.{key}" for key in scheduler if key != "replicas"]
    plugins = {str(one.get("name") or one.get("type")): one for one in config.get("plugins") or ()}
    profiles = config.get("schedulingProfiles") or [{}]
    refs = {str(ref.get("pluginRef")): ref.get("weight", 1) for ref in profiles[0].get("plugins") or ()}
    types = {name: str(plugins.get(name, {}).get("type", name)) for name in refs}
    precise = PRECISE in types.values()
    by_type = {kind: key for key in SCORERS for kind in {_scorer(key, precise), SCORERS[key]}}
    weights: Settings = dict.fromkeys(SCORERS, 0.0)
    weights |= {by_type[kind]: refs[name] for name, kind in types.items() if kind in by_type}
    unread = [f"plug-in {kind}" for kind in types.values() if kind not in by_type and kind not in _AROUND]
    prefix = next(
        (one.get("parameters") or {} for one in plugins.values() if one.get("type") == "prefix-cache-scorer"), {}
    )
    given = {here: prefix[there] for here, there in PARAMETERS.items() if there in prefix and not precise}
    name = "llm-d-precise" if precise else "llm-d"
    return {"name": name, **typed(routers.resolve(name)[0].Params, weights | given)}, unread
