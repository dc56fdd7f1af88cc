"""Settings from files and command lines, put into one mapping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from servesim import untrusted
from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.plugins.trust import check_code
from servesim.run import part_names
from servesim.run.beside import beside
from servesim.run.scenario import Scenario, own_features, scenario_class
from servesim.run.sections import yaml_value


def full_name(key: str, own: tuple[str, ...] = ()) -> str:
    """Return a key of a scenario unchanged, or the full name of a part for its short name; raise UserError, with a
    suggestion, if no scenario has such a setting. `own`: names of a user's features."""
    return part_names.full_name(key, Scenario, scenario_class(own))


def load_settings(path: str | Path, but: Collection[str] = ()) -> Settings:
    """Read the settings in a YAML file, as `read_settings` does. Raise UserError if they name code that may not run
    (servesim.plugins.trust). `but`: settings that are replaced, whose code does not run."""
    settings = read_settings(path)
    check_code({key: value for key, value in settings.items() if key not in but}, f"scenario {path}")
    return settings


def read_settings(path: str | Path) -> Settings:
    """Read the settings in a YAML file without validating them, regardless of the code that they name; paths in the
    file are relative to it (servesim.run.beside). A file that deploys engines is read as their scenario."""
    loaded = _deployed(Path(path)) or untrusted.read_yaml(Path(path), "scenario")
    if not isinstance(loaded, dict):
        raise UserError(f"scenario {path}: not a mapping of settings (such as `model: llama-3.1-8b`)")
    return beside(loaded, Path(path))


def _deployed(path: Path) -> Settings | None:
    if not path.is_file():
        return None
    from servesim.run.deployment_file import deployment

    found = deployment(untrusted.read_text(path, "yaml"), f"scenario {path}")
    return found.settings if found is not None else None


def override(settings: Mapping[str, Any], assignments: Iterable[str]) -> Settings:
    """Return the settings with each `a.b=value` inserted; values are parsed as YAML, except the version, which stays a
    string."""
    changed, own = dict(settings), own_features(settings.get("features"))
    for assignment in assignments:
        key, value = assigned(assignment)
        key = full_name(key, own)
        part_names.assign(changed, key, value if key == "engine.version" else yaml_value(assignment, value), Scenario)
    return changed


def assigned(assignment: str) -> tuple[str, str]:
    """Return the key and text of `key=value`."""
    key, equals, text = assignment.partition("=")
    if not equals:
        raise UserError(f"--set {assignment}: write key=value, such as engine.block_size=32")
    return key.strip(), text
