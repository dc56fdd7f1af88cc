"""Named policies: built in (one file each), installed by entry point, or `path/to/file.py:Name`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import math
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from servesim.errors import UserError, shown, suggest
from servesim.parsing import pairs, policy_parts, spelt
from servesim.plugins.files import load_file
from servesim.plugins.user_policies import adopt

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_FILE_MODULE = "servesim_policy_"
_MOST_TIME = {"_s": 1e9, "_ms": 1e12, "_us": 1e15}
"""Maximum of a time parameter, by suffix of its name: 31 years, so that the sum with any arrival time fits in integer
ns."""
_MOST_WHOLE = 1 << 62
"""Maximum of an integer's absolute value: the sum of two such values still fits in a record."""


class WrongKind(UserError):
    """Error for a policy name that refers to a class of another kind, or to no policy."""


class Registry(Generic[T]):
    """Policies of one kind by name. A policy registers itself with `@registry.register("name")`.

    Built-in modules are imported from `servesim.policies.<package>` on first use; third-party packages add
    theirs through the entry-point group `servesim.<kind>`.
    """

    def __init__(self, kind: str, base: type[Any], package: str) -> None:
        self.kind = kind
        self._base = base
        self._package = package
        self._classes: dict[str, type[T]] = {}
        self._loaded = False

    def register(self, name: str) -> Any:
        """Return a class decorator that registers a policy under `name`."""

        def enter(cls: type[T]) -> type[T]:
            if name in self._classes and not self._classes[name].__module__.startswith(_FILE_MODULE):
                raise ValueError(f"two {self.kind} policies are called {name!r}")
            self._classes[name] = cls
            cls.name = name  # type: ignore[attr-defined]
            adopt(cls)
            return cls

        return enter

    def names(self) -> list[str]:
        """Return every known name, sorted."""
        self._load()
        return sorted(self._classes)

    def resolve(self, spec: str) -> tuple[type[T], dict[str, str]]:
        """Return the class and parameters of `name`, `name:key=value,...` or `file.py:Class[:key=value,...]`."""
        head, class_name, rest = policy_parts(spec)
        if head.endswith(".py"):
            cls = self._from_file(Path(head), class_name)
        else:
            self._load()
            if head not in self._classes:
                raise UserError(f"unknown {self.kind} {head!r}{suggest(head, self._classes)}")
            cls = self._classes[head]
        return cls, pairs(f"{self.kind} {head}", rest)

    def configured(self, settings: Mapping[str, Any]) -> tuple[type[T], Any]:
        """Return the class named by a scenario's settings, and its parameters."""
        values = {key: value for key, value in settings.items() if key != "name"}
        cls, _ = self.resolve(settings["name"])
        return cls, build_params(f"{self.kind} {settings['name']}", cls.Params, values)  # type: ignore[attr-defined]

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{self._package}.{module}")
        for entry in sorted(importlib.metadata.entry_points(group=f"servesim.{self.kind}"), key=lambda e: e.name):
            if entry.name not in self._classes:
                self.register(entry.name)(entry.load())

    def _from_file(self, path: Path, class_name: str) -> type[T]:
        if not path.is_file():
            raise UserError(f"{self.kind} file {path} does not exist")
        if not class_name:
            raise UserError(f"specify the class in {path} as {path}:ClassName")
        if "," in class_name:
            raise UserError(f"{path}: specify one class, and repeat the option for others")
        module = load_file(self.kind, path, _FILE_MODULE)
        cls = getattr(module, class_name, None)
        if not isinstance(cls, type):
            classes = [k for k, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
            raise UserError(f"{path} has no class {class_name!r}{suggest(class_name, classes)}")
        if self._base not in cls.__mro__:  # compiled contracts share the issubclass cache
            raise WrongKind(f"{path}: {class_name} does not derive from {self._base.__name__} (servesim.contracts)")
        cls.name = class_name  # type: ignore[attr-defined]
        adopt(cls)
        return cls


def build_params(what: str, cls: type[Any], values: dict[str, Any]) -> Any:
    """Build the frozen dataclass `cls` from strings or YAML values.

    Raise UserError if a key is unknown or a value does not match its field. A boolean is not a number; a number must be
    finite, unless it is an infinite default.
    """
    from pydantic import ValidationError

    if not dataclasses.is_dataclass(cls):
        raise UserError(f"{what}: Params is not a dataclass: write @dataclass(frozen=True) above it")
    known = {f.name for f in dataclasses.fields(cls)}
    for key in values:
        if key not in known:
            raise UserError(f"{what}: unknown parameter {key!r}{suggest(key, known)}")
    try:
        found = _adapter(cls).validate_python({key: spelt(value) for key, value in values.items()})
    except ValidationError as error:
        raise UserError(f"{what}: {_first_error(error)}") from error
    except ValueError as error:
        raise UserError(f"{what}: {error}") from error
    for field in dataclasses.fields(cls):
        value = getattr(found, field.name)
        if isinstance(value, float) and not math.isfinite(value) and value != field.default:
            raise UserError(f"{what}: {field.name} is {value:g} but must be a finite number")
        time = next((most for unit, most in _MOST_TIME.items() if field.name.endswith(unit)), None)
        time = None if "_per_" in field.name else time
        if time is not None and isinstance(value, int | float) and value > time and value != field.default:
            raise UserError(f"{what}: {field.name} is {shown(value)} but must be at most {time:g}")
        if isinstance(value, int) and abs(value) > _MOST_WHOLE:
            raise UserError(
                f"{what}: {field.name} is {shown(value)} but must be from -{_MOST_WHOLE:g} to {_MOST_WHOLE:g}"
            )
    return found


@functools.lru_cache(256)
def _adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """Return the validator for parameters of a class; building it takes ten times as long as one validation."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _first_error(error: ValidationError) -> str:
    """Return one line that names the parameter and its error."""
    first = error.errors()[0]
    where = ".".join(str(p) for p in first["loc"])
    if first["type"] == "missing":
        return f"{where} is missing"
    if not where:  # the class's own check, which names the parameter
        return first["msg"].removeprefix("Value error, ")
    return f"{where} = {shown(first['input'])}: {first['msg']}"
