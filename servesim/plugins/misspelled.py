"""Names in a user's classes that resemble a verb or flag of their contract but are not one: servesim never uses
them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from servesim.plugins.user_policies import is_own

ALIKE = 0.8
"""Minimum difflib ratio for two names to count as the same word: `on_arival` and `on_arrival` have .95."""


def misspelled(classes: Iterable[type[Any]]) -> Iterator[str]:
    """Yield a sentence for each misspelled name."""
    for cls in dict.fromkeys(filter(is_own, classes)):
        own = [*takewhile(is_own, cls.__mro__)]
        known = {name for each in cls.__mro__[len(own) :] for name in _public(each)}
        known |= {name for each in own for name in _used(each)}
        for name in dict.fromkeys(name for each in own for name in _public(each)):
            close = [] if name in known else get_close_matches(name, sorted(known), 1, ALIKE)
            if close:
                yield f"{cls.__name__}.{name} is never used by servesim (did you mean {close[0]}?)"


def classes_beside(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield the classes of a user's file that are derived from classes of servesim, including `cls`."""
    if is_own(cls):
        for each in vars(sys.modules[cls.__module__]).values():
            if isinstance(each, type) and each.__module__ == cls.__module__ and _built_on_ours(each):
                yield each


def _built_on_ours(cls: type[Any]) -> bool:
    return any(each.__module__.startswith("servesim.") for each in cls.__mro__)


def _used(cls: type[Any]) -> Iterator[str]:
    """Yield the names that the methods of a class use, including its own helpers, wrapped and nested functions."""
    found = [getattr(inspect.unwrap(getattr(each, "fget", each)), "__code__", None) for each in vars(cls).values()]
    while found:
        code = found.pop()
        if code is not None:
            yield from code.co_names
            found += filter(inspect.iscode, code.co_consts)


def _public(cls: type[Any]) -> Iterator[str]:
    names = (*vars(cls), *vars(cls).get("__annotations__", ()))
    return (name for name in names if not name.startswith("_") and cls is not object)
