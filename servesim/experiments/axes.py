"""Axes of an experiment: the settings that vary, their values, and the scenarios in their Cartesian product.

The values in a list are separated by commas. Values may contain commas themselves
(`vllm:max_num_seqs=64,policy=priority`), so commas inside brackets belong to the value. A part continues the preceding
value if it is `key=value` with no colon before the equals sign; any other part starts a new value:

    static,vllm:max_num_seqs=64,policy=priority,sarathi   ->   static | vllm:max_num_seqs=64,policy=priority | sarathi
    synth:rate=2,prompt=lognormal(512,2048),synth:rate=4     ->   synth:rate=2,prompt=lognormal(512,2048) | synth:rate=4
    1,2,4                                                 ->   1 | 2 | 4
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.contracts.section import Settings
from servesim.errors import UserError, suggest
from servesim.parsing import listed
from servesim.run.part_names import sections_of
from servesim.run.scenario import own_features, scenario_class
from servesim.run.setting_names import full_name, load_settings, override

NAMES = frozenset(("scheduler", "kv", "speculation", "acceptance", "router", "model", "gpu", "trace"))
"""Settings whose values are shown without a key in labels; others appear as key=value."""
SINGLE = frozenset(("slo", "shape", "columns", "price", "features"))
"""Settings whose values may themselves contain several values."""


@dataclass(frozen=True)
class Variant:
    """One point of the product of the axes."""

    label: str
    axes: dict[str, Any]
    """Values by axis, as written."""
    settings: Settings
    """Settings of the scenario, not yet validated."""


def split_values(key: str, text: str) -> list[str]:
    """Split a comma-separated list into its values; see the module's docstring for the rule."""
    values: list[str] = []
    for part in listed(key, text):
        head, equals, _ = part.partition("=")
        if values and equals and ":" not in head:
            values[-1] += f",{part}"
        else:
            values.append(part)
    return values


def axis_values(key: str, given: Any) -> list[Any]:
    """Return the values of an axis, given as a comma-separated list on the command line, a list in YAML or Python, or a
    single value."""
    if key in SINGLE or (isinstance(given, str) and key.partition(".")[0] == "slo_classes"):
        return [given]
    values = split_values(key, given) if isinstance(given, str) else given
    values = list(values) if isinstance(values, Sequence) else [values]
    if not values:
        raise UserError(f"{key}: no value is specified")
    seen = [_plain(key, value) for value in values]
    for i, value in enumerate(values):
        if seen.count(seen[i]) > 1:
            raise UserError(f"{key}: {label_of(key, value)} is specified twice")
    return values


def _plain(key: str, value: Any) -> float | str:
    """Return a canonical form that is the same for different spellings of the same value."""
    try:
        return label_of(key, value) if key in NAMES else float(value)
    except (TypeError, ValueError):
        return label_of(key, value)


def product(settings: Mapping[str, Any], axes: Mapping[str, Any]) -> list[Variant]:
    """Return every combination of the axes' values, applied to the settings, with the last axis varying fastest.

    Axes with one value are treated as settings and do not appear in labels.
    """
    own = own_features(axes.get("features", settings.get("features")))
    axes = {full_name(key, own): given for key, given in axes.items()}
    for key in axes:
        check_key(key, own)
    lists = {key: axis_values(key, given) for key, given in axes.items()}
    varied = [key for key, values in lists.items() if len(values) > 1]
    variants = []
    for combination in itertools.product(*lists.values()):
        point = dict(zip(lists, combination, strict=True))
        label = " / ".join(label_of(key, point[key]) for key in varied)
        variants.append(Variant(label, {key: point[key] for key in varied}, _with(settings, point)))
    return variants


def load_grid(
    scenario: str | Path | Mapping[str, Any] | None, axes: Mapping[str, Any]
) -> tuple[Settings, dict[str, Any]]:
    """Return the settings and axes of a scenario, which may have an `axes` key. The given axes take precedence."""
    settings = dict(load_settings(scenario, axes) if isinstance(scenario, str | Path) else scenario or {})
    own = settings.pop("axes", None) or {}
    if not isinstance(own, Mapping):
        raise UserError(f"axes must be a mapping of settings to lists of values, not {own!r}")
    return settings, {**own, **axes}


def check_key(key: str, own: tuple[str, ...] = ()) -> None:
    """Raise UserError with a suggestion if scenarios have no such setting. `own` holds the names of a user's
    features."""
    kind = scenario_class(own)
    outer, dot, inner = key.partition(".")
    if outer not in kind.model_fields:
        raise UserError(f"unknown setting {outer!r}{suggest(outer, kind.model_fields)}")
    section = sections_of(kind).get(outer)
    if dot and section is not None and inner not in section.model_fields:
        raise UserError(f"unknown setting {key!r}{suggest(inner, section.model_fields)}")


def label_of(key: str, value: Any) -> str:
    """Return the label of an axis value in tables."""
    return _text(value) if key in NAMES else f"{key}={_text(value)}"


def _text(value: Any, inner: bool = False) -> str:
    """Return a value as text; a policy that is a parameter of another one has its own parameters in brackets."""
    if not isinstance(value, Mapping):
        return str(value)
    rest = ",".join(f"{k}={_text(v, inner=True)}" for k, v in value.items() if k != "name")
    text = f"{value.get('name', '')}{':' if rest else ''}{rest}"
    return f"({text})" if inner and rest else text


def _with(settings: Mapping[str, Any], point: Mapping[str, Any]) -> Settings:
    changed = dict(settings)
    for key, value in sorted(point.items(), key=lambda item: "." in item[0]):  # a policy before its parameters
        if "." in key or (isinstance(value, str) and key not in NAMES and key not in SINGLE):
            text = value if isinstance(value, str) else json.dumps(value)  # JSON is YAML
            changed = override(changed, [f"{key}={text}"])  # numbers and booleans in text are read as YAML
        else:
            changed[key] = value
    return changed
