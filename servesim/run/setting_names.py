"""Settings by their common names: `max_num_seqs` is `scheduler.max_num_seqs`, wherever it is said."""

from __future__ import annotations

import dataclasses
from functools import cache

from servesim.errors import UserError, suggest


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
        raise UserError(f"{key} is a setting of two parts: write {forms}")
    return f"{sections[0]}.{name}" if sections else None


def full_name(key: str) -> str:
    """Return a key of a scenario as it is, and the common name of a part in full; UserError, with a suggestion, where
    no scenario has such a setting."""
    from servesim.run.scenario import Scenario

    if "." in key or key in Scenario.model_fields:
        return key
    found = whole_name(key)
    if found is None:
        raise UserError(f"unknown setting {key!r}{suggest(key, {*Scenario.model_fields, *_sections()})}")
    return found
