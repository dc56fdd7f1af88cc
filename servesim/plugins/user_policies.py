"""Policies of the user's own, held to their contracts.

What a policy hands to the engine is what its contract says, or one line says otherwise. A compiled build takes nothing
else, and a pure one would carry a float or a None on to where its origin is lost: here both do the same. Policies from
`servesim` itself are left as they are; mypy has read them.
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
from typing import Any, NamedTuple
from weakref import WeakSet

from servesim.errors import Interrupted, PolicyError, UserError


class _Terms(NamedTuple):
    """The demands of a contract on a class beyond Python's own."""

    returns: dict[str, str]
    """Verbs by what they return."""
    required: str = ""
    """Verbs that have no default."""
    made: dict[type[Any], str] = {}  # noqa: RUF012
    """Attributes by type that the base class's `__init__` sets, and that no class attribute may hide."""
    has: dict[type[Any], str] = {}  # noqa: RUF012
    """Attributes by type of the class or the object."""
    blamed: str = ""
    """Verbs whose exceptions are turned into PolicyErrors here, since they are called from many places."""


_TERMS = {
    "Scheduler": _Terms(
        {
            "int": "num_waiting",
            "None": "on_arrival on_fork drop_waiter commit check_integrity",
        },
        required="plan",
        made={object: "params limits kv waiting", list: "running"},
        has={int: "lookahead", frozenset: "needs supports", str: "samples"},
    ),
    "KVAllocator": _Terms(
        {
            "int": "slots idle_tokens swap_out swap_in drop_swapped",
            "bool": "fits can_admit grow can_swap_out can_swap_in can_fork",
            "None": "admit free fork rollback foresee publish evict check_integrity",
            "Usage": "usage",
            "Hit": "lookup",
            "tuple[int, int]": "sharing",
        },
        required="can_admit admit grow free slots usage",
        made={object: "params memory", int: "num_blocks block_size capacity_tokens max_model_len"},
        has={int: "held_tokens copied_tokens", bool: "shares reserves grouped", frozenset: "needs supports"},
    ),
    "Router": _Terms(
        {
            "Decision": "route",
            "None": "on_sent on_prefill_done on_output_block on_finish on_dropped on_kv_events on_report on_replica",
        },
        required="route",
    ),
    "Scaler": _Terms({"int": "wanted"}, required="wanted every_s", made={object: "params profile"}, blamed="wanted"),
    "Speculator": _Terms(
        {"int": "limit verified depth host_ns", "bool": "follows steady", "None": "observe"},
        has={int: "max_drafts lookahead slots_per_request hash_lookahead width", bool: "expands"},
    ),
    "AcceptanceModel": _Terms(
        {"int": "accepted available", "list[int]": "walk", "list[float]": "rates"}, required="accepted rates"
    ),
    "Part": _Terms(
        {
            "bool": "takes reaches gives_up",
            "int": "held",
            "dict": "columns figures conclusions",
            "list[str]": "notes",
        }
    ),
    "Feature": _Terms(
        {
            "bool": "is_on fleet_varies",
            "dict": "spell_out complete resolved refuses from_summary",
            "tuple[Group]": "groups",
        },
        blamed="is_on fleet_varies spell_out complete resolved refuses build groups from_summary in_world",
    ),
    "Connector": _Terms(
        {"int": "available load ran preempted", "None": "join"},
        required="available load",
        has={bool: "in_step"},
        blamed="available load ran preempted join",
    ),
}


_adopted: WeakSet[type[Any]] = WeakSet()


def adopt(cls: type[Any]) -> None:
    """Hold a class to its contract: its verbs return what they should, with numpy's numbers turned into Python's; else
    PolicyError. UserError where a verb is missing, or a class attribute hides what `__init__` sets."""
    if not is_own(cls):
        return
    terms = _terms(cls)
    for name in terms.required.split():
        if not any(name in vars(each) for each in cls.__mro__ if not _is_contract(each)):
            raise UserError(f"{cls.__name__} needs a method {name}, as every {_contract(cls).__name__} does")
    for each in filter(is_own, cls.__mro__):
        for name in " ".join(terms.made.values()).split():
            if name in vars(each):
                raise UserError(f"{each.__name__}.{name} hides what the base class sets: set self.{name} in __init__")
        _check_params(each)
        for name in ("needs", "supports"):
            if isinstance(vars(each).get(name), set | list | tuple):
                setattr(each, name, frozenset(vars(each)[name]))
        if each not in _adopted:
            _adopted.add(each)
            for kind, names in terms.returns.items():
                for name in names.split():
                    if inspect.isfunction(verb := vars(each).get(name)):
                        setattr(each, name, _hold(verb, *_settlers()[kind]))
            for name in terms.blamed.split():
                if inspect.isfunction(verb := vars(each).get(name)):
                    setattr(each, name, _blaming(verb))


def _check_params(cls: type[Any]) -> None:
    """Raise UserError where a policy has parameters of its own without those that its base's `__init__` reads."""
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
    """Make a policy of that class. PolicyError where a user's policy cannot be made, or lacks what it must have."""
    with blaming([cls]):
        policy = cls(*args)
    if is_own(cls):
        terms = _terms(cls)
        for name in " ".join(terms.made.values()).split():
            if not hasattr(policy, name):
                raise PolicyError(f"{cls.name}: has no {name}: its __init__ must call super().__init__")
        for kind, name in _pairs([*terms.made.items(), *terms.has.items()]):
            if not isinstance(value := getattr(policy, name), kind):
                raise PolicyError(f"{cls.name}: {name} is {value!r}, not {_A[kind]}")
    return policy


@contextmanager
def blaming(classes: Iterable[type[Any]], when: Callable[[], str] = str) -> Iterator[None]:
    """Turn an exception into a PolicyError that names the class and the line that raises it, where one of these classes
    is the user's own. `when`: what follows the name."""
    try:
        yield
    except (UserError, PolicyError, Interrupted):
        raise
    except (Exception, SystemExit) as error:
        own = [cls for cls in classes if is_own(cls)]
        if own and (blamed := _blame(error, own, when())):
            raise blamed from error
        raise


def _blame(error: BaseException, own: list[type[Any]], when: str) -> PolicyError | None:
    """Return the PolicyError that names the user's class at fault; None where no such class is."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module, me = frame.f_globals.get("__name__"), type(frame.f_locals.get("self"))
        here = [cls for cls in own if any(module == each.__module__ for each in filter(is_own, cls.__mro__))]
        if here:
            code = frame.f_code
            return PolicyError(
                f"{_name(me if me in here else here[0])}{when}: {code.co_name} raises {type(error).__name__}: {error} "
                f"({Path(code.co_filename).name} line {line})"
            )
    if isinstance(error, OSError | MemoryError | SystemExit):
        return None
    at = traceback.extract_tb(error.__traceback__)[-1]
    names = ", ".join(sorted(map(_name, {*own})))
    return PolicyError(f"{names}{when}: {type(error).__name__}: {error} ({Path(at.filename).name} line {at.lineno})")


def is_own(cls: type[Any]) -> bool:
    """Return whether a class is from outside servesim and the standard library."""
    package = cls.__module__.partition(".")[0]
    return package != "servesim" and package not in sys.stdlib_module_names


def _name(cls: type[Any]) -> str:
    """Return what a class is called: by its registry, or in its file."""
    return str(getattr(cls, "name", cls.__name__))


def _is_contract(cls: type[Any]) -> bool:
    return cls.__module__.startswith("servesim.contracts.")


def _contract(cls: type[Any]) -> type[Any]:
    return next((each for each in cls.__mro__ if _is_contract(each)), object)


def _terms(cls: type[Any]) -> _Terms:
    return _TERMS.get(_contract(cls).__name__, _Terms({}))


def _pairs(by_type: Iterable[tuple[type[Any], str]]) -> Iterator[tuple[type[Any], str]]:
    for kind, names in by_type:
        for name in names.split():
            yield kind, name


def _hold(verb: Any, usual: type[Any], settle: Callable[[Any], Any], a: str) -> Callable[..., Any]:
    """Return the verb with its result settled unless it is of the usual type. It keeps the verb's own parameters:
    through *args a call takes three times as long."""

    def settled(policy: Any, returned: Any) -> Any:
        try:
            return settle(returned)
        except (TypeError, ValueError, AttributeError):
            told = f"{_name(type(policy))}: {verb.__name__} returns {returned!r}, not {a}"
            raise PolicyError(told) from None

    code = verb.__code__
    plain = not (code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount)
    given = ", ".join(code.co_varnames[: code.co_argcount]) if plain and code.co_argcount else "*_args, **_kwargs"
    me = code.co_varnames[0] if plain and code.co_argcount else "_args[0]"
    source = f"""def held({given}):
    _returned = _verb({given})
    return _returned if _type(_returned) is _usual else _settled({me}, _returned)"""
    scope = {"_verb": verb, "_usual": usual, "_settled": settled, "_type": type}
    exec(compile(source, __file__, "exec"), scope)
    held: Any = scope["held"]
    held.__defaults__ = verb.__defaults__
    return functools.wraps(verb)(held)


def _blaming(verb: Any) -> Callable[..., Any]:
    """Return the verb with its exceptions blamed on its class."""

    def blamed(feature: Any, *args: Any) -> Any:
        with blaming([type(feature)]):
            return verb(feature, *args)

    return functools.wraps(verb)(blamed)


_A = {int: "an int", bool: "True or False", list: "a list", str: "a str", frozenset: "a frozenset of str"}


@functools.cache
def _settlers() -> dict[str, tuple[type[Any], Callable[[Any], Any], str]]:
    """Return, by annotation: the type that needs no look inside, what converts other values, and its name."""
    from servesim.contracts.kv import Usage

    def usage(four: Any) -> Usage:
        return four if type(four) is Usage and type(sum(four)) is int else Usage(*map(_whole, four))

    nothing = type("nothing", (), {})
    return {
        "int": (int, _whole, _A[int]),
        "Decision": (int, _decision, _A[int]),
        "bool": (bool, _truth, _A[bool]),
        "None": (type(None), lambda returned: None, "None"),
        "Usage": (nothing, usage, "a Usage of ints"),
        "Hit": (nothing, lambda hit: hit._replace(num_tokens=_whole(hit.num_tokens)), "a Hit"),
        "tuple[int, int]": (nothing, _pair, "two ints"),
        "list[int]": (nothing, lambda numbers: [_whole(n) for n in numbers], "a list of ints"),
        "dict": (dict, _mapping, "a dict"),
        "list[str]": (nothing, lambda lines: [_text(line) for line in lines], "a list of str"),
        "tuple[Group]": (nothing, lambda groups: tuple(_group(group) for group in groups), "a tuple of Groups"),
        "list[float]": (nothing, lambda numbers: [float(n) for n in numbers], "a list of floats"),
    }


def _whole(number: Any) -> int:
    return number if isinstance(number, int) else operator.index(number)


def _decision(decision: Any) -> Any:
    from servesim.contracts.router import Pair, Reject, Wait

    if isinstance(decision, Wait):
        return Wait(_from(decision.most_ns, 0), _whole(decision.status), _from(decision.again_ns, 1))
    return decision if isinstance(decision, Pair | Reject) else _whole(decision)


def _from(number: Any, least: int) -> int | None:
    if number is not None and _whole(number) < least:
        raise TypeError
    return None if number is None else _whole(number)


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


def _group(group: Any) -> Any:
    from servesim.contracts.figures import Group

    if not isinstance(group, Group):
        raise TypeError
    return group


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _pair(pair: Sequence[Any]) -> tuple[int, int]:
    first, second = pair
    return _whole(first), _whole(second)
