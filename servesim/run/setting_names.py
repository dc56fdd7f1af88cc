"""Settings from files and command lines, put into one mapping, and their common names: `max_num_seqs` is
`scheduler.max_num_seqs`, wherever it is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.contracts.section import Settings, policy_settings
from servesim.errors import UserError, shown, suggest
from servesim.metrics.slo import parse_slo
from servesim.parsing import with_changes
from servesim.run.beside import POLICIES, beside
from servesim.run.presets import preset_settings
from servesim.run.sections import renamed, yaml_value


@cache
def _sections() -> dict[str, tuple[str, ...]]:
    """Return the sections of a scenario that have a part of each name: fields, and parameters of any policy. Those of
    routers and autoscalers give way: what an engine names so is the engine's."""
    from servesim.contracts import REGISTRIES
    from servesim.run.scenario import Scenario, sections_of

    found: dict[str, list[str]] = {}
    for section, model in sections_of(Scenario).items():
        for name in model.model_fields:
            found.setdefault(name, []).append(section)
    outside = ("router", "scaler")
    for registry in sorted(REGISTRIES, key=lambda registry: registry.kind in outside):
        classes = [registry.resolve(name)[0] for name in registry.names()]
        names = {
            part.name
            for cls in classes
            if dataclasses.is_dataclass(cls.Params)
            for part in dataclasses.fields(cls.Params)
        }
        for name in sorted(names):
            if registry.kind not in outside or name not in found:
                found.setdefault(name, []).append(registry.kind)
    return {name: tuple(sections) for name, sections in found.items()}


def whole_name(key: str) -> str | None:
    """Return the dotted name of a part by its own, hyphens for underscores or not; None where no section has it.
    UserError where two sections have it."""
    name = key.replace("-", "_")
    sections = _sections().get(name, ())
    if len(sections) > 1:
        forms = " or ".join(f"{section}.{name}" for section in sections)
        raise UserError(f"{key} needs a section: write {forms}")
    return f"{sections[0]}.{name}" if sections else None


def full_name(key: str, own: tuple[str, ...] = ()) -> str:
    """Return a key of a scenario as it is, and the common name of a part in full; UserError, with a suggestion, if no
    scenario has such a setting. `own`: names of a user's features."""
    from servesim.run.scenario import scenario_class

    fields = scenario_class(own).model_fields
    if "." in key or key in fields:
        return key
    found = whole_name(key)
    if found is None:
        raise UserError(f"unknown setting {key!r}{suggest(key, {*fields, *_sections()})}")
    return found


def load_settings(path: str | Path) -> Settings:
    """Read the settings in a YAML file, not yet validated; paths in it are relative to it (servesim.run.beside)."""
    loaded = untrusted.read_yaml(Path(path), "scenario")
    if not isinstance(loaded, dict):
        raise UserError(f"scenario {path}: not a mapping of settings (such as `model: llama-3.1-8b`)")
    return beside(loaded, Path(path))


def override(settings: Mapping[str, Any], assignments: Iterable[str]) -> Settings:
    """The settings with each `a.b=value` put in; values are read as YAML, but for the version, which is text."""
    from servesim.run.scenario import own_features

    changed, own = dict(settings), own_features(settings.get("features"))
    for assignment in assignments:
        key, value = assigned(assignment)
        key = full_name(key, own)
        _assign(changed, key, value if key == "engine.version" else yaml_value(assignment, value))
    return changed


def with_parts(settings: Mapping[str, Any], parts: Mapping[str, Any]) -> Settings:
    """The settings with values, as Python has them, put in by names of parts: `max_num_seqs`, `engine.block_size`."""
    changed = dict(settings)
    for key, value in parts.items():
        _assign(changed, full_name(key), value)
    return changed


def assigned(assignment: str) -> tuple[str, str]:
    """Key and text of `key=value`."""
    key, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"--set {assignment}: write key=value, such as engine.block_size=32")
    return key.strip(), text


def _assign(settings: Settings, key: str, value: Any) -> None:
    outer, dot, inner = key.partition(".")
    if not dot:
        settings[key] = value
        return
    current = settings.get(outer)
    from servesim.run.scenario import Scenario

    if outer in ("gpu", "model"):
        if current is None:
            raise UserError(f"{key}: set {outer} first")
        settings[outer] = with_changes(renamed(current), {inner: value})
        return
    if outer in POLICIES:
        preset = preset_settings(settings["preset"]) if settings.get("preset") else {}
        default = preset.get(outer, Scenario.model_fields[outer].default)
        current = policy_settings(default if current is None else current) if current or default else None
    elif outer == "slo" and isinstance(current, str):
        current = parse_slo(current)
    if current is not None and not isinstance(current, Mapping):
        raise UserError(f"{key}: {outer} is {shown(current)}, which has no settings of its own")
    settings[outer] = {**(current or {}), inner: value}
