"""Requirements of a contract for a user's class, read from the contract's source because a compiled class keeps no
annotations."""

from __future__ import annotations

import ast
import functools
from importlib.resources import files
from typing import Any, NamedTuple

Kind = tuple[type[Any], str]
"""A type, and its name in messages."""
ANY: Kind = (object, "anything")
KINDS: dict[str, Kind] = {
    "int": (int, "an int"),
    "bool": (bool, "True or False"),
    "str": (str, "a str"),
    "SampleForm": (str, "a str"),
    "list[Request]": (list, "a list"),
    "frozenset[str]": (frozenset, "a frozenset of str"),
}
"""Kinds of attributes by annotation; attributes with other annotations are not checked."""


class Terms(NamedTuple):
    """The requirements of a contract beyond those that Python itself enforces."""

    returns: dict[str, str]
    """Annotations of the verbs' return values, by verb."""
    required: list[str]
    """Verbs without a default implementation."""
    made: dict[str, Kind]
    """Attributes that the contract's `__init__` sets, and that no class attribute may hide."""
    has: dict[str, Kind]
    """Other attributes of the class or the object."""


NONE = Terms({}, [], {}, {})


@functools.cache
def terms_of(contract: type[Any]) -> Terms:
    """Return the requirements of a class of servesim.contracts for its public methods and for the attributes that its
    body annotates."""
    package, _, module = contract.__module__.rpartition(".")
    tree = ast.parse((files(package) / f"{module}.py").read_text(encoding="utf-8"))
    body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == contract.__name__)
    methods = {each.name: each for each in body if isinstance(each, ast.FunctionDef)}
    verbs = {name: method for name, method in methods.items() if not name.startswith("_")}
    in_init = ast.walk(methods["__init__"]) if "__init__" in methods else ()
    stored = {each.attr for each in in_init if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
    kinds = {ast.unparse(each.target): _kind(each.annotation) for each in body if isinstance(each, ast.AnnAssign)}
    return Terms(
        {name: ast.unparse(verb.returns) for name, verb in verbs.items() if verb.returns is not None},
        [name for name, verb in verbs.items() if "abstractmethod" in map(ast.unparse, verb.decorator_list)],
        {name: kind for name, kind in kinds.items() if name in stored},
        {name: kind for name, kind in kinds.items() if name not in stored and kind is not ANY},
    )


def _kind(annotation: ast.expr) -> Kind:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "ClassVar":
        annotation = annotation.slice
    return KINDS.get(ast.unparse(annotation), ANY)
