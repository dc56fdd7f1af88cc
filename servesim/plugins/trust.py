"""Permission to run code that is named only inside a file, such as a scenario or a result from someone else.

Code named on the command line, or in a Python call, runs. Code named only inside a file runs with `--trust` (from
Python: `trust=True`); otherwise reading the file raises a UserError that lists the code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from servesim.errors import UserError, shown

P = ParamSpec("P")
R = TypeVar("R")
_allowed: ContextVar[frozenset[Path] | None] = ContextVar("allowed", default=frozenset())
"""Code files that the user has named; None: all files are trusted."""
_asked: ContextVar[bool] = ContextVar("asked", default=False)
"""Whether permission is asked for. It is not in Python code that imports policies by itself."""


def code_in(value: Any) -> list[Path]:
    """Return the existing code files that strings in a value name as `file.py:Class`, at any depth."""
    found: dict[Path, None] = {}
    for text in _texts(value):
        for mark in re.finditer(r"\.py:", text):
            head = text[: mark.start()] + ".py"
            starts = [0, *(each.end() for each in re.finditer(r"[=,:]\s*", head))]
            found |= {path: None for start in starts if _is_file(path := Path(head[start:].strip()))}
    return list(found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif hasattr(value, "model_dump"):  # a scenario
        yield from _texts(value.model_dump())
    elif isinstance(getattr(value, "summary", None), Mapping):  # a result, which asked when it was read
        yield from _texts(value.summary.get("scenario"))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long for a file, or with a NUL
        return False


@contextmanager
def trusting(trust: bool, own: Any = ()) -> Iterator[None]:
    """Allow all code, or the code named in the user's `own` words and settings, for the duration of a `with` block."""
    known = _allowed.get()
    allowed = None if trust or known is None else known | {path.resolve() for path in code_in(own)}
    before, asked = _allowed.set(allowed), _asked.set(True)
    try:
        yield
    finally:
        _allowed.reset(before)
        _asked.reset(asked)


def takes_trust(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function the keyword `trust`; code named in its other arguments counts as the user's own."""

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        trust = kwargs.pop("trust", False)
        if not isinstance(trust, bool):
            raise UserError(f"trust is {shown(trust)} but must be True or False")
        with trusting(trust, (args, kwargs)):
            return function(*args, **kwargs)

    return within


def check_code(settings: Any, where: str) -> None:
    """Raise UserError if settings from a file, named by `where`, name code that the user has neither named nor
    trusted."""
    allowed = _allowed.get()
    if allowed is not None and (new := [path for path in code_in(settings) if path.resolve() not in allowed]):
        raise _refused(where, new)


def check_import(path: Path) -> None:
    """Raise UserError if a code file that is about to run was neither named by the user nor trusted, however the text
    that names it was written."""
    allowed = _allowed.get()
    if _asked.get() and allowed is not None and path.resolve() not in allowed:
        raise _refused("a file", [path])


def _refused(where: str, code: list[Path]) -> UserError:
    it = "it" if len(code) == 1 else "them"
    return UserError(
        f"{where} refers to code that would run with your full permissions: {', '.join(map(str, code))}. Read {it}, "
        "then add --trust (in Python, trust=True)"
    )
