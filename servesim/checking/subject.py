"""Subject of a check (a policy, a connector or a feature): its kind, name and class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.contracts import REGISTRIES, Registry, build_params
from servesim.contracts.connector import connectors
from servesim.contracts.feature import features
from servesim.errors import UserError, suggest
from servesim.parsing import spelt
from servesim.plugins.registry import WrongKind
from servesim.run.scenario import Scenario


@dataclass(frozen=True)
class Subject:
    """A policy, connector or feature as named on the command line, with the class it refers to."""

    spec: str
    """`name`, `name:key=value,...` or `file.py:Class[:key=value,...]`."""
    registry: Registry[Any]
    cls: type[Any]
    params: Any
    """Parameters of a policy or connector, or settings of a feature."""

    @property
    def kind(self) -> str:
        """Kind of the subject: scheduler, kv, router, speculation, acceptance, scaler, connector or feature."""
        return self.registry.kind

    @property
    def name(self) -> str:
        """Registered name, or the name of the class."""
        return str(self.cls.name)

    @classmethod
    def of(cls, spec: str) -> Subject:
        """Find the subject that a spec names, of any kind. Raise UserError if there is none, or if a parameter or
        setting is wrong."""
        registry = registry_of(spec)
        found, values = registry.resolve(spec)
        if hasattr(found, "Params"):
            return cls(spec, registry, found, build_params(spec, found.Params, dict(values)))
        subject = cls(spec, registry, found, {key: spelt(value) for key, value in values.items()})
        if registry is features:
            subject.scenario()
        return subject

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a scenario that has this feature."""
        place, head = self.cls.place(), self.spec
        own = {"features": [":".join(head.split(":")[:2])]} if ".py:" in head else {}
        return own | ({place: dict(self.params)} if place and self.params else dict(self.params))

    def scenario(self, **more: Any) -> Scenario:
        """Return a scenario that has this feature. Raise UserError if its settings are wrong."""
        return Scenario.of({"trace": "synth:", "model": "llama-3.1-8b", "gpu": "h200", **self.settings, **more})


def registry_of(spec: str) -> Registry[Any]:
    """Return the registry of a policy's kind, of features or of connectors. A name that a connector shares with a
    policy means the policy. Raise UserError if nothing has that name."""
    registries: tuple[Registry[Any], ...] = (connectors, features, *REGISTRIES)
    if ".py:" not in spec:
        name = spec.partition(":")[0]
        everything = {known: registry for registry in registries for known in registry.names()}
        if name not in everything:
            raise UserError(f"unknown policy {name!r}{suggest(name, everything)}")
        return everything[name]
    if not (file := Path(f"{spec.partition('.py:')[0]}.py")).is_file():
        raise UserError(f"policy file {file} does not exist")
    for registry in registries:
        try:
            registry.resolve(spec)
        except WrongKind:
            continue
        return registry
    raise UserError(f"{spec} is not a policy: it must derive from a contract in servesim.contracts")
