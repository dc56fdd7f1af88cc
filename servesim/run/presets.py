"""Serving systems by name: the policies and settings of engines.yaml, under what the user says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from servesim.errors import UserError, suggest

POLICIES = ("scheduler", "kv", "router")


@cache
def engine_presets() -> dict[str, dict[str, Any]]:
    """Return version, source and settings of each system."""
    import yaml

    text = resources.files("servesim.run").joinpath("engines.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return loaded


def preset_settings(name: Any) -> dict[str, Any]:
    """Return the settings of a system; UserError for an unknown name."""
    known = engine_presets()
    if name not in known:
        raise UserError(f"preset: unknown engine {name!r}{suggest(str(name), known)}")
    settings: dict[str, Any] = known[name]["settings"]
    return settings


def under(settings: Mapping[str, Any], policy_settings: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Complete settings with those of their `preset`, if any. Parameters of a preset's policy hold for that policy
    alone."""
    name = settings.get("preset")
    if name is None:
        return dict(settings)
    merged = dict(settings)
    for key, value in preset_settings(name).items():
        given = settings.get(key)
        if given is None:
            merged[key] = value
        elif key in POLICIES:
            policy = policy_settings(given)
            merged[key] = {**value, **policy} if policy["name"] == value["name"] else policy
        elif isinstance(given, Mapping):
            merged[key] = {**value, **given}
    return merged
