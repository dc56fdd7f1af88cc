"""The user's own policies, and the enforcement of their contracts.

The values that a policy returns to the engine must match its contract; otherwise a one-line error is raised. A compiled
build accepts nothing else, but a pure Python one would carry a float or a None on until its origin is lost; with these
checks, both behave the same. Policies from `servesim` itself are not wrapped, because mypy has checked them.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from servesim.errors import Interrupted, PolicyError, UserError
from servesim.plugins.terms import NONE, Terms, terms_of

_BLAMED = ("Scaler", "Feature", "Connector", "Decider")
"""Contracts whose verbs are called from many places, so their exceptions are turned into PolicyErrors here."""
_PACKED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_adopted: WeakSet[type[Any]] = WeakSet()


def adopt(cls: type[Any]) -> None:
    """Enforce a class's contract: its verbs must return the declared types, with numpy numbers converted to Python;
    otherwise a call raises PolicyError. Raise UserError if a verb is missing, or a class attribute hides one that
    `__init__` sets."""
    if not is_own(cls):
        return
    terms = _terms(cls)
    for name in terms.required:
        if not any(name in vars(each) for each in cls.__mro__ if not _is_contract(each)):
            raise UserError(f"{cls.__name__} needs a method {name}, as every {_contract(cls).__name__} does")
    for each in filter(is_own, cls.__mro__):
        for name in terms.made:
            if name in vars(each):
                raise UserError(
                    f"{each.__name__}.{name} hides an attribute that the base class sets: set self.{name} in __init__ "
                    "instead"
                )
        _check_params(each)
        for name in ("needs", "supports"):
            if isinstance(vars(each).get(name), set | list | tuple):
                setattr(each, name, frozenset(vars(each)[name]))
        if each not in _adopted:
            _adopted.add(each)
            for name, annotation in terms.returns.items():
                if inspect.isfunction(verb := vars(each).get(name)):
                    if annotation in _settlers():
                        verb = _hold(verb, *_settlers()[annotation])
                    setattr(each, name, _blaming(verb) if _contract(cls).__name__ in _BLAMED else verb)


def _check_params(cls: type[Any]) -> None:
    """Raise UserError if a policy's own parameters do not include those that its base's `__init__` reads."""
    if not isinstance(vars(cls).get("Params"), type):
        return
    own: Any = cls
    base: Any = next(
        each for each in cls.__mro__[1:] if _is_contract(each) or {"__init__", "Params"} & vars(each).keys()
    )
    if not _is_contract(base) and "__init__" not in vars(cls) and base.Params not in own.Params.__mro__:
        raise UserError(
            f"{cls.__name__}.Params does not derive from {base.__name__}.Params, which {base.__name__} reads: write "
            f"class Params({base.__name__}.Params)"
        )


def make(cls: type[Any], *args: Any) -> Any:
    """Create a policy of the given class. Raise PolicyError if a user's policy cannot be created, or lacks a required
    attribute."""
    with blaming([cls]):
        policy = cls(*args)
    if is_own(cls):
        terms = _terms(cls)
        for name in terms.made:
            if not hasattr(policy, name):
                raise PolicyError(f"{cls.name}: attribute {name} is missing: its __init__ must call super().__init__")
        for name, (kind, a) in {**terms.made, **terms.has}.items():
            if not isinstance(value := getattr(policy, name), kind):
                raise PolicyError(f"{cls.name}: {name} is {value!r}, not {a}")
    return policy


@contextmanager
def blaming(classes: Iterable[type[Any]], when: Callable[[], str] = str) -> Iterator[None]:
    """Turn an exception into a PolicyError that names the class and the line that raised it, if one of these classes is
    the user's own. `when`: returns the text after the name."""
    try:
        yield
    except (UserError, PolicyError, Interrupted, KeyboardInterrupt):
        raise
    except BaseException as error:  # a policy may raise anything, or exit
        own = [cls for cls in classes if is_own(cls)]
        if own and (blamed := _blame(error, own, when())):
            raise blamed from error
        raise


def _blame(error: BaseException, own: list[type[Any]], when: str) -> PolicyError | None:
    """Return the PolicyError that names the user's class at fault, or None if there is no such class."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module, me = frame.f_globals.get("__name__"), type(frame.f_locals.get("self"))
        here = [cls for cls in own if any(module == each.__module__ for each in filter(is_own, cls.__mro__))]
        if here:
            code = frame.f_code
            return PolicyError(
                f"{_name(me if me in here else here[0])}{when}: {code.co_name} raises {type(error).__name__}: {error} "
                f"({Path(code.co_filename).name} line {line})"
            )
    if isinstance(error, OSError | MemoryError) or not isinstance(error, Exception):
        return None
    at = traceback.extract_tb(error.__traceback__)[-1]
    names = ", ".join(sorted(map(_name, {*own})))
    return PolicyError(f"{names}{when}: {type(error).__name__}: {error} ({Path(at.filename).name} line {at.lineno})")


def is_own(cls: type[Any]) -> bool:
    """Return whether a class is defined outside servesim and the standard library."""
    package = cls.__module__.partition(".")[0]
    return package != "servesim" and package not in sys.stdlib_module_names


def _name(cls: type[Any]) -> str:
    """Return the name of a class: its name in the registry if it has one, else its name in its file."""
    return str(getattr(cls, "name", cls.__name__))


def _is_contract(cls: type[Any]) -> bool:
    return cls.__module__.startswith("servesim.contracts.")


def _contract(cls: type[Any]) -> type[Any]:
    return next((each for each in cls.__mro__ if _is_contract(each)), object)


def _terms(cls: type[Any]) -> Terms:
    contract: Any = _contract(cls)
    return NONE if contract is object else terms_of(contract)


def _hold(verb: Any, usual: type[Any], settle: Callable[[Any], Any], a: str) -> Callable[..., Any]:
    """Return the verb wrapped so that its result is converted unless the result already has the usual type.

    The wrapper is compiled with the verb's own parameters. A closure with *args and **kwargs would be simpler, but a
    run of 10,000 requests would take 7 % longer on a user's allocator, which is called for each request in each step (1
    % on a user's scheduler, called once a step).
    """

    def settled(policy: Any, returned: Any) -> Any:
        try:
            return settle(returned)
        except (TypeError, ValueError, AttributeError):
            said = f"{_name(type(policy))}: {verb.__name__} returns {returned!r}, not {a}"
            raise PolicyError(said) from None

    code = verb.__code__
    plain = code.co_argcount and not code.co_kwonlyargcount | code.co_flags & _PACKED
    given = ", ".join(code.co_varnames[: code.co_argcount]) if plain else "*_args, **_named"
    me = code.co_varnames[0] if plain else "_args[0]"
    scope = {"_verb": verb, "_usual": usual, "_settled": settled, "_type": type}
    source = f"""def held({given}):
    _returned = _verb({given})
    return _returned if _type(_returned) is _usual else _settled({me}, _returned)"""
    exec(compile(source, __file__, "exec"), scope)
    held: Any = scope["held"]
    held.__defaults__ = verb.__defaults__
    return functools.wraps(verb)(held)


def _blaming(verb: Any) -> Callable[..., Any]:
    """Return the verb with its exceptions attributed to its class."""

    def blamed(feature: Any, *args: Any) -> Any:
        with blaming([type(feature)]):
            return verb(feature, *args)

    return functools.wraps(verb)(blamed)


class _Nothing:
    """Type that no value has, so that every value is checked."""


_Settler = tuple[type[Any], Callable[[Any], Any], str]
_of_contracts: dict[str, _Settler] = {}


def settles(annotation: str, settle: Callable[[Any], Any], a: str, usual: type[Any] = _Nothing) -> None:
    """Register how results of verbs with this return annotation are converted (`settle` raises TypeError or ValueError
    if they cannot be), and how messages name them. `usual`: the type that needs no further check."""
    _of_contracts[annotation] = (usual, settle, a)


def _settlers() -> dict[str, _Settler]:
    """Return for each annotation: the type that needs no further check, the converter of other values, and the type's
    name in messages."""
    nothing = _Nothing
    return _of_contracts | {
        "int": (int, _whole, "an int"),
        "bool": (bool, _truth, "True or False"),
        "None": (type(None), lambda returned: None, "None"),
        "Hit": (nothing, lambda hit: hit._replace(num_tokens=_whole(hit.num_tokens)), "a Hit"),
        "tuple[int, int]": (nothing, _pair, "two ints"),
        "list[int]": (nothing, lambda numbers: [_whole(n) for n in numbers], "a list of ints"),
        "dict[str, Any]": (dict, _mapping, "a dict"),
        "Mapping[str, str]": (dict, _mapping, "a dict"),
        "Mapping[str, int]": (
            nothing,
            lambda found: {k: _whole(n) for k, n in _mapping(found).items()},
            "a dict of ints",
        ),
        "list[str]": (nothing, lambda lines: [_text(line) for line in lines], "a list of str"),
        "list[float]": (nothing, lambda numbers: [float(n) for n in numbers], "a list of floats"),
    }


def _whole(number: Any) -> int:
    return number if isinstance(number, int) else operator.index(number)


def _truth(truth: Any) -> bool:
    if not isinstance(truth, bool):
        import numpy as np

        if isinstance(truth, np.bool_):
            return bool(truth)
        raise TypeError
    return bool(truth)


def _mapping(found: Any) -> dict[Any, Any]:
    if not isinstance(found, Mapping):
        raise TypeError
    return dict(found)


def _counts(found: Any) -> dict[Any, int]:
    return {key: _whole(number) for key, number in _mapping(found).items()}


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _pair(pair: Sequence[Any]) -> tuple[int, int]:
    first, second = pair
    return _whole(first), _whole(second)
