"""Facts about one engine version on one GPU, from the YAML files next to this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from servesim.errors import UserError, suggest
from servesim.shipped import shipped_yaml

_ABOUT = ("engine", "newest", "dated", "unpriced")
_ENTRY = {"value", "since", "before", "gpus", "source"}
_noted: ContextVar[set[str] | None] = ContextVar("_noted", default=None)


@dataclass(frozen=True, slots=True)
class Fact:
    """A value and its source."""

    value: Any
    source: str
    priced: bool = True
    """Whether anything in servesim depends on the fact; if not, the fact is only listed."""


@dataclass(frozen=True)
class EngineFacts:
    """Behavior of one version of an engine on one GPU."""

    engine: str
    version: str
    gpu: str
    facts: Mapping[str, Fact]
    beyond: bool = False
    """Whether the version is newer than the newest known one, whose facts are used."""

    @property
    def release(self) -> tuple[int, int]:
        """The major and minor numbers of the version."""
        version = parse_version(self.version)
        return version.major, version.minor

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a fact, or `default` if there is no entry for this engine, version and GPU."""
        noted = _noted.get()
        if noted is not None:
            noted.add(name)
        fact = self.facts.get(name)
        return default if fact is None else fact.value


def engines() -> list[str]:
    """Return the names of the engines with facts."""
    folder = resources.files("servesim.versions")
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


def engine_facts(engine: str, version: str | None = None, gpu: str = "") -> EngineFacts:
    """Return the facts about a version of an engine on a GPU; the default version is the newest known one.

    Raises UserError for an unknown engine and for an invalid version.
    """
    if engine not in engines():
        raise UserError(f"no facts are known about engine {engine!r}{suggest(engine, engines())}")
    table = _table(engine)
    newest = parse_version(table["newest"])
    asked = newest if version is None else parse_version(version)
    entries = {name: _holding(value, asked, gpu) for name, value in table.items() if name not in _ABOUT}
    unpriced = table.get("unpriced", ())
    facts = {n: Fact(e["value"], e["source"], n not in unpriced) for n, e in entries.items() if e is not None}
    return EngineFacts(engine, version or table["newest"], gpu, facts, Version(asked.public) > newest)


@contextmanager
def noting() -> Iterator[set[str]]:
    """Collect the names of the facts that are asked for inside, known or not: whatever depends on no other facts is the
    same under any version that agrees on these."""
    names: set[str] = set()
    token = _noted.set(names)
    try:
        yield names
    finally:
        _noted.reset(token)


def turning_points(engine: str) -> list[str]:
    """Return the versions of an engine at which a fact changes on some GPU, and the newest known one, oldest first."""
    table = _table(engine)
    entries = [entry for name, facts in table.items() if name not in _ABOUT for entry in facts]
    found = {entry[end] for entry in entries for end in ("since", "before") if end in entry}
    return sorted({*found, table["newest"]}, key=Version)


def recorded_engine(text: str, gpu: str = "") -> EngineFacts | None:
    """Return the facts about an engine named as in recordings ("vllm 0.22.1"), or None if the table has no such
    engine."""
    name, _, version = text.lower().partition(" ")
    try:
        return engine_facts(name, version or None, gpu)
    except UserError:
        return None


def parse_version(text: str) -> Version:
    """Return a version as a comparable object; raise UserError if the text is not a version."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UserError(f"engine.version is {text!r} but must be a version such as 0.23.0") from None


@cache
def _table(engine: str) -> dict[str, Any]:
    table: dict[str, Any] = shipped_yaml("servesim.versions", f"{engine}.yaml")
    for name, entries in table.items():
        for entry in entries if name not in _ABOUT else ():
            if not {"value", "source"} <= entry.keys() <= _ENTRY:
                raise UserError(
                    f"{engine}.yaml: {name}: an entry has value, source, and optionally since, before, gpus"
                )
    return table


def _holding(entries: list[dict[str, Any]], version: Version, gpu: str) -> dict[str, Any] | None:
    """Return the entry that applies to the version and GPU, or None."""

    def holds(entry: dict[str, Any]) -> bool:
        since, before = entry.get("since"), entry.get("before")
        return (
            (since is None or version >= Version(since))
            and (before is None or version < Version(before))
            and gpu in entry.get("gpus", [gpu])
        )

    def says(entry: dict[str, Any]) -> tuple[bool, bool, Version]:
        return "gpus" in entry, "before" in entry, Version(entry.get("since", "0"))

    return max(filter(holds, entries), key=says, default=None)
