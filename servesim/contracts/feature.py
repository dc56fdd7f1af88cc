"""Contract of features: what is optional in a run. A feature declares its settings and what it cannot be combined with,
and builds the part of a run (servesim.contracts.part), or none if it is off.

A built-in feature is a folder of servesim/features, found by its name; a package may add one through the entry-point
group `servesim.feature`; a user's own is named `path/to/file.py:Class` in the scenario's `features`.
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
    neither the scenario nor the settings they are given, and may be called at any time. Those that say so may raise
    UserError; whatever else a user's own raises becomes a PolicyError that names its class and line."""

    name: ClassVar[str] = "?"
    rank: ClassVar[int] = 1000
    """Order of parts, and of settings: those of lower rank come first."""
    Settings: ClassVar[type[Section]] = Section
    """Keys of the scenario, with their defaults; options, help and documentation follow."""
    section: ClassVar[str | None] = None
    """Section of the scenario in which its keys stand; "": in none. None: its name in lower case."""
    of_pool: ClassVar[tuple[str, ...]] = ()
    """Its keys that pools may have of their own."""
    claims: ClassVar[tuple[str, ...]] = ()
    """Keys declared elsewhere that have no effect without it; a scenario that sets one no feature claims is refused."""
    Options: ClassVar[type[Section]] = Section
    """Keywords of servesim.simulate that change what is worked out, not what is run; attributes of Setup.options.
    `on_command_line` in a field's json_schema_extra: its default as an option of `servesim run`."""

    acts: ClassVar[bool] = False
    """Whether its part may change a run by more than its answers to what it is asked: by events, views, memory. One
    that does not say so leaves all records as they are (`servesim policies check`)."""
    serves: ClassVar[tuple[str, ...]] = ()
    """Kinds of policies that only a run with it has, such as `scaler`."""

    def is_on(self, scenario: Any) -> bool:
        """Return whether a scenario asks for it. Default: one of its keys, or of those it claims, is not as by
        default; one of a user's own is asked for by its name."""
        of: Any = type(scenario)
        named = any(name.endswith(f".py:{self.name}") for name in scenario.features)
        return named or any(_at(scenario, key) != _at(_plain(of), key) for key in (*self.keys(), *self.claims))

    def fleet_varies(self, scenario: Any) -> bool:
        """Return whether it makes replicas come and go. Default: no."""
        return False

    def spell_out(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings as given with shorthands of this feature written out, before anything else is done with them.
        UserError if one is wrong. Default: as they are."""
        return settings

    def complete(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return settings under their preset with what this feature implies, before they are checked. UserError if it
        cannot be. Default: as they are."""
        return settings

    def resolved(self, scenario: Any) -> dict[str, Any]:
        """Return its top-level keys, with nothing left open, for the record of the run. Default: as they are."""
        return {}

    def refuses(self, scenario: Any) -> Mapping[str, str]:
        """Return what it cannot be combined with, and the error that says so: names of features, and `samples` (n > 1),
        `stream`, `jobs`, `speculation`, `pp`, `pools`."""
        return {}

    def build(self, setup: Any) -> Part | None:
        """Return the part of a run (servesim.run.setup.Setup); None: the feature is off. UserError if its settings do
        not fit the run."""
        return None

    def groups(self) -> tuple[Group, ...]:
        """Return its figures (servesim.contracts.figures), a group for each section of the summary. Default: none."""
        return ()

    def from_summary(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Return sections that follow from a summary in which they were left out, by key. Default: none."""
        return {}

    def in_world(self, world: Any, draws: Any) -> Any:
        """Return a small world (servesim.checking.world.World) with this feature in it, for `policies check` and tests.
        `draws`: servesim.checking.draw.Draws. Default: as it is, for a feature that a run of made-up costs has not."""
        return world

    def in_world_with(self, world: Any, draws: Any, cls: type[Any], params: Any) -> Any:
        """Return a small world with this policy, of a kind that it serves, in it. Only if it serves any."""
        raise NotImplementedError

    @classmethod
    def place(cls) -> str:
        """Return the section of its keys; empty: they stand at the top, or there are none."""
        if not cls.Settings.model_fields:
            return ""
        return cls.name.lower() if cls.section is None else cls.section

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return its keys as a scenario has them, such as `cluster.failures`."""
        place = cls.place()
        return tuple(f"{place}.{name}" if place else name for name in cls.Settings.model_fields)

    @classmethod
    def settings(cls, scenario: Any) -> Any:
        """Return its settings in a scenario: an object of its `Settings`."""
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
    """Return all features that are found by name, by rank."""
    return by_rank(features.resolve(name)[0]() for name in features.names())


def of_user(names: Iterable[str]) -> tuple[Feature, ...]:
    """Return the features that are named by file and class, by rank; UserError if one is not there."""
    return by_rank(features.resolve(name)[0]() for name in names)


def by_rank(found: Iterable[Feature]) -> tuple[Feature, ...]:
    """Return features in the order of their ranks, then of their names."""
    return tuple(sorted(found, key=lambda feature: (feature.rank, feature.name)))


def _at(scenario: Any, key: str) -> Any:
    """Return the value of a dotted key."""
    for name in key.split("."):
        scenario = getattr(scenario, name)
    return scenario


@cache
def _plain(kind: Any) -> Any:
    """Return a scenario of this class in which nothing is set."""
    return kind.model_construct()
