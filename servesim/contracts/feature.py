"""Contract of features: optional parts of a run. A feature declares its settings and what it cannot be combined with,
and builds the part of a run (servesim.contracts.part), or no part if it is off.

A built-in feature is a folder of servesim/features, found by its name. A package may add one through the entry-point
group `servesim.feature`. A user's own feature is named `path/to/file.py:Class` in the scenario's `features`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from servesim.contracts.figures import Group
from servesim.contracts.section import Section
from servesim.plugins.registry import Registry
from servesim.plugins.user_policies import settles

if TYPE_CHECKING:
    from servesim.contracts.part import Part


class Feature:
    """An optional part of a run. Modules that only a run with the feature needs are imported in `build`. Methods change
    neither the scenario nor the settings they are given, and may be called at any time. Methods that say so may raise
    UserError; any other exception from a user's own feature becomes a PolicyError that names its class and line."""

    name: ClassVar[str] = "?"
    rank: ClassVar[int] = 1000
    """Order of parts and of settings; lower ranks come first."""
    Settings: ClassVar[type[Section]] = Section
    """Keys of the scenario with their defaults, from which options, help and documentation are generated."""
    section: ClassVar[str | None] = None
    """Section of the scenario that contains its keys; "" for the top level, None for its name in lower case."""
    of_pool: ClassVar[tuple[str, ...]] = ()
    """Keys for which each pool may have its own value."""
    claims: ClassVar[tuple[str, ...]] = ()
    """Keys declared elsewhere that have no effect without it. A scenario that sets such a key is refused if no feature
    claims it."""
    Options: ClassVar[type[Section]] = Section
    """Keywords of servesim.simulate that change the analysis, not the run; attributes of Setup.options.
    `on_command_line` in a field's json_schema_extra is its default as an option of `servesim run`."""

    acts: ClassVar[bool] = False
    """Whether its part may change a run other than through its answers, such as through events, views or memory. A
    feature that does not declare this leaves all records unchanged (`servesim policies check`)."""
    searched: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Values that `servesim recommend` tries, by key of the scenario; the first one is the default."""
    alone: ClassVar[Mapping[str, Any]] = {}
    """Settings, by key of the scenario, of a run that has the feature and serves each request alone, on one replica."""
    serves: ClassVar[tuple[str, ...]] = ()
    """Kinds of policies that only runs with the feature have, such as `scaler`."""

    def is_on(self, scenario: Any) -> bool:
        """Return whether a scenario enables it. Default: one of its own or claimed keys differs from the default; a
        user's own feature is enabled by its name."""
        of: Any = type(scenario)
        named = any(name.endswith(f".py:{self.name}") for name in scenario.features)
        return named or any(_at(scenario, key) != _at(_plain(of), key) for key in (*self.keys(), *self.claims))

    def fleet_varies(self, scenario: Any) -> bool:
        """Return whether it adds and removes replicas during the run. Default: no."""
        return False

    def spell_out(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the given settings with this feature's shorthands expanded; called before anything else is done with
        them. Raise UserError if a setting is invalid. Default: return them unchanged."""
        return settings

    def complete(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings, including those of the preset, completed with what this feature implies; called before
        they are checked. Raise UserError if they cannot be completed. Default: return them unchanged."""
        return settings

    def resolved(self, scenario: Any) -> dict[str, Any]:
        """Return its top-level keys, fully resolved, for the record of the run. Default: unchanged."""
        return {}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        """Return what it cannot be combined with, and the error message for each: names of features, and `samples` (n >
        1), `stream`, `jobs`, `speculation`, `pp`, `pools`."""
        return {}

    def build(self, setup: Any) -> Part | None:
        """Return the part of a run (servesim.run.setup.Setup), or None if the feature is off. Raise UserError if its
        settings do not fit the run."""
        return None

    def groups(self) -> tuple[Group, ...]:
        """Return its figures (servesim.contracts.figures), with one group per section of the summary. Default: none."""
        return ()

    def from_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return sections, by key, that are omitted from a summary but can be derived from it. Default: none."""
        return {}

    def in_world(self, world: Any, draws: Any) -> Any:
        """Return a small world (servesim.checking.world.World) with this feature in it, for `policies check` and tests.
        `draws`: servesim.checking.draw.Draws. Default: unchanged, for a feature that does not apply to runs with
        synthetic costs."""
        return world

    def in_world_with(self, world: Any, draws: Any, cls: type[Any], params: Any) -> Any:
        """Return a small world that contains this policy, of a kind that the feature serves. Only for features that
        serve a kind."""
        raise NotImplementedError

    @classmethod
    def place(cls) -> str:
        """Return the section of its keys, or an empty string if they are at the top level or there are none."""
        if not cls.Settings.model_fields:
            return ""
        return cls.name.lower() if cls.section is None else cls.section

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return its keys as written in a scenario, such as `cluster.failures`."""
        place = cls.place()
        return tuple(f"{place}.{name}" if place else name for name in cls.Settings.model_fields)

    @classmethod
    def settings(cls, scenario: Any) -> Any:
        """Return its settings in a scenario as an object of its `Settings`."""
        if not cls.Settings.model_fields:
            return cls.Settings()
        found = getattr(scenario, cls.place()) if cls.place() else scenario
        return cls.Settings.model_construct(**{name: getattr(found, name) for name in cls.Settings.model_fields})


def _group(group: Any) -> Group:
    if not isinstance(group, Group):
        raise TypeError
    return group


settles("tuple[Group, ...]", lambda groups: tuple(map(_group, groups)), "a tuple of Groups")
features: Registry[Feature] = Registry("feature", Feature, "servesim.features")


@cache
def installed() -> tuple[Feature, ...]:
    """Return all features found by name, sorted by rank."""
    return by_rank(features.resolve(name)[0]() for name in features.names())


def of_user(names: Iterable[str]) -> tuple[Feature, ...]:
    """Return the features named by file and class, sorted by rank. Raise UserError if one does not exist."""
    return by_rank(features.resolve(name)[0]() for name in names)


def by_rank(found: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return features sorted by rank, then by name."""
    return tuple(sorted(found, key=lambda feature: (feature.rank, feature.name)))


def _at(scenario: Any, key: str) -> Any:
    """Return the value of a dotted key."""
    for name in key.split("."):
        scenario = getattr(scenario, name)
    return scenario


@cache
def _plain(kind: Any) -> Any:
    """Return a scenario of this class with no settings."""
    return kind.model_construct()
