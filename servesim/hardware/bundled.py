"""The models that come with servesim: their names, and their `config.json`."""

from __future__ import annotations

from importlib import resources
from typing import Any

from servesim.errors import UserError
from servesim.untrusted import parse_json


def bundled_models() -> list[str]:
    """Return the names that `ModelSpec.load` accepts without a file."""
    folder = resources.files("servesim.hardware").joinpath("models")
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def bundled_config(name: str) -> dict[str, Any]:
    """Return the `config.json` of a bundled model."""
    text = resources.files("servesim.hardware").joinpath(f"models/{name}.json").read_text()
    return config_of(text, name)


def config_of(text: str, where: str) -> dict[str, Any]:
    """Return the content of a `config.json`. Raise UserError if it is not an object."""
    config = parse_json(text, f"model config {where}")
    if not isinstance(config, dict):
        raise UserError(f"model config {where} is not a JSON object")
    return config
