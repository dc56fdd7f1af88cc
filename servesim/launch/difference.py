"""Settings that a written form cannot hold: what differs after it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts.section import Settings
from servesim.errors import UserError
from servesim.run.beside import POLICIES
from servesim.run.deployment_file import restored
from servesim.run.part_names import sections_of
from servesim.run.pools import FIELDS
from servesim.run.scenario import Scenario, own_features, scenario_class

REQUIRED = {"trace": "synth:rate=1", "model": "llama-3.1-8b", "gpu": "h100"}
"""Values of required settings, while a scenario without them is written."""
_ROUNDS = 4


def completed(settings: Mapping[str, Any]) -> Settings:
    """Return settings in which every required one has a value, and the whole scenario that they mean."""
    return {key: value for key, value in REQUIRED.items() if settings.get(key) is None} | {
        key: value for key, value in settings.items() if key not in REQUIRED or value is not None
    }


def whole(settings: Mapping[str, Any]) -> Settings:
    """Return the complete scenario of settings."""
    found: Settings = Scenario.of(completed(settings)).model_dump()
    return found


def lost_of(settings: Mapping[str, Any], read: Mapping[str, Any]) -> Settings:
    """Return the settings, by dotted key, with which those read from a form mean the same scenario again."""
    want = whole(settings)
    given = {key: want[key] for key in REQUIRED if settings.get(key) is not None and key != "model"}
    lost = dict(given)
    for _ in range(_ROUNDS):
        try:
            more = changed(want, whole(restored(read, lost)))
        except UserError:
            break
        if not more:
            return lost
        lost |= more
    return given | dict(_flat(want))


def changed(want: Mapping[str, Any], got: Mapping[str, Any]) -> Settings:
    """Return the settings of one scenario, by dotted key, that another one does not have."""
    if not want.get("pools") or len(want["pools"]) != len(got.get("pools") or ()):
        return _apart(want, got)
    top = _apart(_outside(want), _outside(got))
    each = [_apart(pool, other) for pool, other in zip(want["pools"], got["pools"], strict=True)]
    common = {key: value for key, value in each[0].items() if all(pool.get(key, each) == value for pool in each)}
    own = [
        (f"pools.{other['name']}.{key}", value)
        for pool, other in zip(each, got["pools"], strict=True)
        for key, value in pool.items()
        if key not in common
    ]
    return top | common | dict(own)


def _outside(scenario: Mapping[str, Any]) -> Settings:
    """Return the settings that pools do not override."""
    return {key: value for key, value in scenario.items() if key not in (*FIELDS, "pools")}


def _apart(want: Mapping[str, Any], got: Mapping[str, Any]) -> Settings:
    flat, other = _flat(want), _flat(got)
    found: Settings = {}
    for key, value in flat.items():
        if key in other and other[key] == value and type(other[key]) is type(value):
            continue
        there: Any = other.get(key)
        if key in POLICIES and _extends(value, there):
            found |= {f"{key}.{name}": part for name, part in value.items() if there.get(name, there) != part}
        else:
            found[key] = value
    plain = Scenario.model_construct()
    return found | {key: getattr(plain, key) for key in other if key not in flat and hasattr(plain, key)}


def _extends(policy: Any, other: Any) -> bool:
    """Return whether a policy is another one with further or different parameters."""
    both = isinstance(policy, Mapping) and isinstance(other, Mapping)
    return both and policy["name"] == other["name"] and set(other) <= set(policy)


def _flat(scenario: Mapping[str, Any]) -> Settings:
    """Return settings with those of sections under dotted keys."""
    sections = sections_of(scenario_class(own_features(scenario.get("features"))))
    found: Settings = {}
    for key, value in scenario.items():
        inside = key in sections and isinstance(value, Mapping)
        found |= {f"{key}.{name}": inner for name, inner in value.items()} if inside else {key: value}
    return found
