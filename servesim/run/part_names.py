"""Parts of a scenario by short name: `max_num_seqs` means `scheduler.max_num_seqs` wherever it is given. `kind`: the
class of scenarios that has these sections and fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from servesim.contracts.section import Settings, policy_settings
from servesim.errors import UserError, shown, suggest
from servesim.metrics.slo import parse_slo
from servesim.parsing import with_changes
from servesim.run.beside import POLICIES
from servesim.run.presets import preset_settings
from servesim.run.sections import renamed
from servesim.sentinels import NOTHING


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the sections of a scenario's class, by name."""
    fields = model.model_fields.items()
    return {
        name: of for name, field in fields if isinstance(of := field.annotation, type) and issubclass(of, BaseModel)
    }


@cache  # callers hold `kind` as Any: where pydantic is not installed, a compiler takes the class for unhashable
def _sections(kind: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """Return, for each name of a part, the sections of a scenario that have such a part: a field, or a parameter of any
    policy. Parameters of routers and autoscalers have lower precedence: a name that they share with the engine means
    the engine's setting."""
    from servesim.contracts import REGISTRIES

    found: dict[str, list[str]] = {}
    for section, model in sections_of(kind).items():
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


def whole_name(key: str, kind: Any) -> str | None:
    """Return the dotted name of a part, given its short name with hyphens or underscores, or None if no section has
    such a part. Raise UserError if two sections have one."""
    name = key.replace("-", "_")
    sections = _sections(kind).get(name, ())
    if len(sections) > 1:
        forms = " or ".join(f"{section}.{name}" for section in sections)
        raise UserError(f"{key} needs a section: write {forms}")
    return f"{sections[0]}.{name}" if sections else None


def full_name(key: str, kind: Any, own: type[BaseModel]) -> str:
    """Return a key of a scenario unchanged, or the full name of a part for its short name; raise UserError, with a
    suggestion, if no scenario has such a setting. `own`: the class that also has the sections of a user's features."""
    fields = own.model_fields
    if "." in key or key in fields:
        return key
    found = whole_name(key, kind)
    if found is None:
        raise UserError(f"unknown setting {key!r}{suggest(key, {*fields, *_sections(kind)})}")
    return found


def with_parts(settings: Mapping[str, Any], parts: Mapping[str, Any], kind: type[BaseModel]) -> Settings:
    """Return the settings with Python values inserted under names of parts, such as `max_num_seqs` or
    `engine.block_size`."""
    changed = dict(settings)
    for key, value in parts.items():
        assign(changed, full_name(key, kind, kind), value, kind)
    return changed


def worded(settings: Mapping[str, Any], kind: type[BaseModel]) -> Settings:
    """Return settings in which the words `none` and `null` mean None for a field whose default is None, at the top and
    in sections: a file may say them as the command line does."""
    inner = sections_of(kind)
    return {
        key: worded(value, inner[key]) if key in inner and isinstance(value, Mapping) else _worded(key, value, kind)
        for key, value in settings.items()
    }


def _worded(key: str, value: Any, kind: type[BaseModel]) -> Any:
    optional = key in kind.model_fields and kind.model_fields[key].default is None
    return None if optional and isinstance(value, str) and value in NOTHING else value


def assign(settings: Settings, key: str, value: Any, kind: type[BaseModel]) -> None:
    """Put a value into settings under its full name. `none` and `null` mean None for a field whose default is None."""
    outer, dot, inner = key.partition(".")
    if not dot:
        settings[key] = _worded(key, value, kind)
        return
    current = settings.get(outer)
    if outer in ("gpu", "model"):
        if current is None:
            raise UserError(f"{key}: set {outer} first")
        settings[outer] = with_changes(renamed(current), {inner: value})
        return
    if outer in POLICIES:
        preset = preset_settings(settings["preset"]) if settings.get("preset") else {}
        default = preset.get(outer, kind.model_fields[outer].default)
        current = policy_settings(default if current is None else current) if current or default else None
    elif outer == "slo" and isinstance(current, str):
        current = parse_slo(current)
    if current is not None and not isinstance(current, Mapping):
        raise UserError(f"{key}: {outer} is {shown(current)}, which has no settings of its own")
    settings[outer] = {**(current or {}), inner: value}
