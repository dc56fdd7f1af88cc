"""Conversion of failure settings into `servesim.features.failures.part`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from servesim.errors import UserError, shown, suggest
from servesim.features.failures.part import Add, Crash, Drain, Failures, Happening, Slowdown
from servesim.parsing import pairs

if TYPE_CHECKING:
    from servesim.features.failures import FailureSettings

NS = 10**9
KEYS = {
    "crash": ("replica", "at", "restart"),
    "slow": ("replica", "at", "until", "factor"),
    "drain": ("replica", "at"),
    "add": ("at", "startup", "pool", "gpu", "model"),
}
"""Keys of each kind."""
OPTIONAL = ("restart", "startup", "pool", "gpu", "model")
NAMES = ("pool", "gpu", "model")
"""Keys whose values are not numbers."""
VARYING = ("drain:", "add:")
"""Beginnings of what makes replicas come or go."""


class Kind(NamedTuple):
    """Replicas that may be added."""

    pool: int
    """Number of their pool, in the order of the run's."""
    start_ns: int
    """Time that they take to start."""


KindOf = Callable[[str, str, str], Kind]
"""Function that returns what is added, by names of pool, GPU and model; "" means as there is."""


def failures_of(
    settings: FailureSettings, replicas: int | None, seed: int, kind_of: KindOf | None = None
) -> Failures | None:
    """Return the failures and operations of a run, or None if there are none. `replicas`: the number of replicas if it
    is constant. Raise UserError for what cannot happen."""
    if not settings.failures:
        return None
    found = [happening(text, replicas, kind_of) for text in settings.failures]
    return response_of(settings, seed)._replace(
        crashes=tuple(each for each in found if isinstance(each, Crash)),
        slowdowns=tuple(each for each in found if isinstance(each, Slowdown)),
        drains=tuple(each for each in found if isinstance(each, Drain)),
        adds=tuple(each for each in found if isinstance(each, Add)),
    )


def response_of(settings: FailureSettings, seed: int) -> Failures:
    """Return the response to failures, without any."""
    return Failures(
        detect_ns=ns_of(settings.detection_s),
        reroutes=settings.reroutes,
        migrations=settings.migrations,
        backoff_ns=ns_of(settings.reroute_delay_s),
        seed=seed,
    )


def happening(text: str, replicas: int | None = None, kind_of: KindOf | None = None) -> Happening:
    """Return what a text such as `crash:replica=0,at=10` describes. Raise UserError if it cannot happen."""
    kind, _, rest = text.partition(":")
    if kind not in KEYS:
        raise UserError(f"cluster.failures: unknown failure {shown(kind)}{suggest(kind, KEYS)}")
    given = pairs(text, rest)
    if unknown := [key for key in given if key not in KEYS[kind]]:
        raise UserError(f"cluster.failures: {kind}: unknown key {shown(unknown[0])}{suggest(unknown[0], KEYS[kind])}")
    if missing := [key for key in KEYS[kind] if key not in given and key not in OPTIONAL]:
        raise UserError(f"cluster.failures: {shown(text)}: {missing[0]} is missing")
    numbers = {key: _number(kind, key, value) for key, value in given.items() if key not in NAMES}
    at = ns_of(given["at"])
    if kind == "add":
        return _add(given, at, kind_of)
    replica = int(numbers["replica"])
    if replica != numbers["replica"] or (replicas is not None and replica >= replicas):
        known = f"from 0 to {replicas - 1}" if replicas is not None else "a whole number"
        raise UserError(f"cluster.failures: {shown(text)}: the replica must be {known}")
    if kind == "crash":
        return Crash(replica, at, ns_of(given["restart"]) if "restart" in given else -1)
    if kind == "drain":
        return Drain(replica, at)
    until, factor = ns_of(given["until"]), numbers["factor"]
    if until <= at or not 0 < factor <= 1e6:
        rule = "'until' must be later than 'at', and 'factor' must be greater than 0"
        raise UserError(f"cluster.failures: {shown(text)}: {rule}")
    return Slowdown(replica, at, until, factor)


def ns_of(seconds: float | str) -> int:
    """Return seconds as a whole number of ns; exact for a text."""
    return int((Decimal(str(seconds)) * NS).to_integral_value())


def seconds_of(ns: int) -> str:
    """Return ns as seconds, exactly."""
    whole, rest = divmod(ns, NS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def _add(given: Mapping[str, str], at: int, kind_of: KindOf | None) -> Add:
    names = [given.get(key, "") for key in NAMES]
    added = kind_of(*names) if kind_of is not None else Kind(0, 0)
    return Add(at, ns_of(given["startup"]) if "startup" in given else added.start_ns, added.pool)


def _number(kind: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and 0 <= number <= 1e7):
        raise UserError(f"cluster.failures: {kind}: {key} is {shown(value)} but must be a number from 0 to 1e7")
    return number
