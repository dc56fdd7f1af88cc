"""Serving systems by name: policies and settings from engines.yaml and the version, overridden by the user's
settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from servesim.errors import UserError, suggest
from servesim.hardware.model import ModelSpec
from servesim.shipped import shipped_yaml
from servesim.versions import EngineFacts, engine_facts, engines

POLICIES = ("scheduler", "kv", "router")
VERSIONED = ("gpu_memory_utilization", "async_scheduling")
"""Settings of the engine whose defaults depend on its version."""


@cache
def engine_presets() -> dict[str, dict[str, Any]]:
    """Return version, source and settings of each system."""
    loaded: dict[str, dict[str, Any]] = shipped_yaml("servesim.run", "engines.yaml")
    return loaded


def preset_settings(name: Any) -> dict[str, Any]:
    """Return the settings of a system; raise UserError for an unknown name."""
    known = engine_presets()
    if name not in known:
        raise UserError(f"preset: unknown engine {name!r}{suggest(str(name), known)}")
    settings: dict[str, Any] = known[name]["settings"]
    return settings


def under(settings: Mapping[str, Any], policy_settings: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Complete settings with those of their `preset`, if any, and with those of the engine's version. Parameters of a
    preset's policy apply only to that policy. A `kv_dtype` of `auto` is one that is not given."""
    merged = {key: value for key, value in settings.items() if (key, value) != ("kv_dtype", "auto")}
    name = settings.get("preset")
    if name is not None:
        _complete(merged, settings, name, policy_settings)
    engine = merged.get("engine") or {}
    if isinstance(engine, Mapping):
        facts = facts_of(name, engine.get("version"))
        if facts.engine == (name or "vllm"):
            merged["engine"] = {key: fact for key in VERSIONED if (fact := facts.get(key)) is not None} | dict(engine)
        kv_dtype = facts.get("kv_dtype_of_weights", {}).get(merged.get("dtype"))
        if kv_dtype is not None and merged.get("kv_dtype") is None and _dense(merged.get("model")):
            merged["kv_dtype"] = kv_dtype
    return merged


def _dense(model: Any) -> bool:
    """Return whether the named model has neither experts nor block-scaled FP8 weights; False for an unknown model."""
    try:
        spec = ModelSpec.load(model)
    except (UserError, TypeError):
        return False  # reported when the model is loaded
    return spec.experts is None and not spec.block_scaled


def facts_of(preset: str | None, version: Any = None, gpu: str = "") -> EngineFacts:
    """Return the engine facts of a preset (None: vllm). Systems without facts are priced as the newest vLLM; raise
    UserError if a version is given for such a system, or if a version is invalid."""
    if preset is not None and preset not in engines():
        if version is not None:
            raise UserError(
                f"engine.version: no versions of {preset} are known, only versions of {', '.join(engines())}"
            )
        return engine_facts("vllm", None, gpu)
    if version is not None and not isinstance(version, str):
        raise UserError(f'engine.version is {version!r} but must be text: write it in quotes, such as "0.30"')
    return engine_facts(preset or "vllm", version, gpu)


def _complete(
    merged: dict[str, Any],
    settings: Mapping[str, Any],
    name: str,
    policy_settings: Callable[[Any], dict[str, Any]],
) -> None:
    for key, value in preset_settings(name).items():
        given = settings.get(key)
        if given is None:
            merged[key] = value
        elif key in POLICIES:
            policy = policy_settings(given)
            merged[key] = {**value, **policy} if policy["name"] == value["name"] else policy
        elif isinstance(given, Mapping):
            merged[key] = {**value, **given}
