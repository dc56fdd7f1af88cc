"""The policy that is checked: its kind, its name and its class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servesim.contracts import REGISTRIES, Registry, build_params
from servesim.errors import UserError, suggest
from servesim.plugins.registry import WrongKind


@dataclass(frozen=True)
class Subject:
    """A policy as it is named on the command line, and what that names."""

    spec: str
    """`name`, `name:key=value,...` or `file.py:Class[:key=value,...]`."""
    registry: Registry[Any]
    cls: type[Any]
    params: Any

    @property
    def kind(self) -> str:
        """What it is: scheduler, kv, router, speculation, acceptance or scaler."""
        return self.registry.kind

    @property
    def name(self) -> str:
        """The name of its class, or the one it is registered by."""
        return str(self.cls.name)

    @classmethod
    def of(cls, spec: str) -> Subject:
        """Find a policy of any kind. UserError where there is none, a parameter is wrong, or it is an autoscaler: the
        worlds that policies are checked in have replicas that stay."""
        registry = registry_of(spec)
        if registry.kind == "scaler":
            raise UserError(f"policies check: {spec} is an autoscaler, and those are not checked in random worlds")
        found, values = registry.resolve(spec)
        return cls(spec, registry, found, build_params(spec, found.Params, dict(values)))


def registry_of(spec: str) -> Registry[Any]:
    """Return the registry of a policy's kind. UserError where no policy has that name."""
    if ".py:" not in spec:
        name = spec.partition(":")[0]
        everything = {known: registry for registry in REGISTRIES for known in registry.names()}
        if name not in everything:
            raise UserError(f"unknown policy {name!r}{suggest(name, everything)}")
        return everything[name]
    if not (file := Path(f"{spec.partition('.py:')[0]}.py")).is_file():
        raise UserError(f"policy file {file} does not exist")
    for registry in REGISTRIES:
        try:
            registry.resolve(spec)
        except WrongKind:
            continue
        return registry
    raise UserError(f"{spec} is no policy: it derives from none of the contracts in servesim.contracts")
