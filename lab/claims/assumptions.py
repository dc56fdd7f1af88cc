"""Scenarios of experiments: YAML files that a reader can open, copy and edit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from servesim.errors import UserError, suggest
from servesim.plugins.trust import check_code
from servesim.untrusted import parse_yaml

Given = Mapping[str, Any]
"""Assumptions of an experiment: the contents of its scenario file."""


def load(name: str, folder: Path | None = None) -> tuple[Given, str]:
    """Load the assumptions of an experiment and their YAML text, from `folder/NAME.yaml` if it exists (missing keys
    come from the shipped file), or else from the shipped file. A UserError names the file and key."""
    shipped = resources.files("servesim_lab.claims").joinpath("scenarios", f"{name}.yaml")
    text = shipped.read_text(encoding="utf-8")
    given = _parse(text, str(shipped))
    path = folder / f"{name}.yaml" if folder is not None else None
    if path is None or not path.is_file():
        return given, text
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"scenario {path}: cannot be read: {error}") from error
    edited = _parse(text, str(path))
    for key in edited:
        if key not in given:
            raise UserError(f"scenario {path}: unknown key {key!r}{suggest(str(key), given)}")
    return {**given, **edited}, text


def check_folder(folder: Path | None, names: list[str]) -> None:
    """Raise UserError unless the folder contains a scenario, and only scenarios of experiments that exist, without code
    that may not run (servesim.plugins.trust)."""
    if folder is None:
        return
    found = sorted(path.stem for path in folder.glob("*.yaml")) if folder.is_dir() else []
    if not found:
        raise UserError(f"--scenarios {folder}: no scenario (NAME.yaml) there")
    for stem in found:
        if stem not in names:
            raise UserError(f"--scenarios {folder}: {stem}.yaml is of no experiment{suggest(stem, names)}")
        given: Given = {}
        with suppress(UserError, OSError, UnicodeDecodeError):  # told by the experiment
            given = _parse((folder / f"{stem}.yaml").read_text(encoding="utf-8"), stem)
        check_code(given, f"scenario {folder / stem}.yaml")


def _parse(text: str, where: str) -> dict[str, Any]:
    loaded = parse_yaml(text, f"scenario {where}")
    if not isinstance(loaded, dict):
        raise UserError(f"scenario {where}: not a mapping")
    return loaded
