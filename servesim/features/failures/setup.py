"""Conversion of failure settings into `servesim.features.failures.part`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from servesim.errors import UserError, shown, suggest
from servesim.features.failures.happenings import Add, Crash, Drain, Failures, Happening, OnNode, Slowdown
from servesim.features.failures.networks import SlowNet
from servesim.features.failures.upgrade import Upgrade
from servesim.parsing import pairs

if TYPE_CHECKING:
    from servesim.features.failures import FailureSettings

NS = 10**9
KEYS = {
    "crash": ("replica", "node", "at", "restart"),
    "slow": ("replica", "node", "at", "until", "factor"),
    "drain": ("replica", "node", "at"),
    "add": ("at", "startup", "pool", "gpu", "model"),
    "slow_net": ("replica", "node", "pool", "at", "until", "factor"),
    "upgrade": ("at", "batch", "surge", "startup", "grace", "pool", "gpu", "model"),
}
"""Keys of each kind."""
OPTIONAL = ("restart", "startup", "pool", "gpu", "model", "replica", "node", "batch", "surge", "grace")
NAMES = ("pool", "gpu", "model")
"""Keys whose values are not numbers."""
PLACES = ("replica", "node", "pool")
"""Keys that say where something happens, of which one is given."""
ONE_PLACE = ("crash", "slow", "drain")
"""Kinds that happen at a replica or a node."""
VARYING = ("drain:", "add:", "upgrade:")
"""Beginnings of what makes replicas come or go."""


class Kind(NamedTuple):
    """Replicas that may be added."""

    pool: int
    """Number of their pool, in the order of the run's."""
    start_ns: int
    """Time that they take to start."""


KindOf = Callable[[str, str, str, str], Kind]
"""Function that returns what is added, for a kind of KEYS, by names of pool, GPU and model; "" means as there is."""


class Counts(NamedTuple):
    """Replicas and nodes of a run in which their number is constant."""

    replica: int
    node: int


def failures_of(
    settings: FailureSettings, counts: Counts | None, seed: int, kind_of: KindOf | None = None
) -> Failures | None:
    """Return the failures and operations of a run, or None if there are none. `counts`: what there is, if it is
    constant. Raise UserError for what cannot happen."""
    if not settings.failures:
        return None
    found = [happening(text, counts, kind_of) for text in settings.failures]
    return response_of(settings, seed)._replace(
        crashes=tuple(each for each in found if isinstance(each, Crash)),
        slowdowns=tuple(each for each in found if isinstance(each, Slowdown)),
        drains=tuple(each for each in found if isinstance(each, Drain)),
        adds=tuple(each for each in found if isinstance(each, Add)),
        nodes=tuple(each for each in found if isinstance(each, OnNode)),
        networks=tuple(each for each in found if isinstance(each, SlowNet)),
        upgrades=tuple(each for each in found if isinstance(each, Upgrade)),
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


def happening(text: str, counts: Counts | None = None, kind_of: KindOf | None = None) -> Happening:
    """Return what a text such as `crash:replica=0,at=10` describes. Raise UserError if it cannot happen."""
    kind, _, rest = text.partition(":")
    if kind not in KEYS:
        raise UserError(f"cluster.failures: unknown failure {shown(kind)}{suggest(kind, KEYS)}")
    given = pairs(text, rest)
    if unknown := [key for key in given if key not in KEYS[kind]]:
        raise UserError(f"cluster.failures: {kind}: unknown key {shown(unknown[0])}{suggest(unknown[0], KEYS[kind])}")
    missing = [key for key in KEYS[kind] if key not in given and key not in OPTIONAL]
    if kind in ONE_PLACE and not {*PLACES} & {*given}:
        missing.insert(0, "replica")
    if missing:
        raise UserError(f"cluster.failures: {shown(text)}: {missing[0]} is missing")
    _check_place(text, given, counts)
    numbers = {key: _number(kind, key, value) for key, value in given.items() if key not in NAMES}
    at = ns_of(given["at"])
    if kind == "add":
        return _add(given, at, kind_of)
    if kind == "upgrade":
        return _upgrade(text, given, at, kind_of)
    what: Crash | Slowdown | Drain
    replica, node = int(numbers.get("replica", -1)), int(numbers.get("node", -1))
    if kind == "crash":
        what = Crash(replica, at, ns_of(given["restart"]) if "restart" in given else -1)
    elif kind == "drain":
        what = Drain(replica, at)
    else:
        until, factor = ns_of(given["until"]), numbers["factor"]
        if until <= at or not 0 < factor <= 1e6:
            rule = "'until' must be later than 'at', and 'factor' must be greater than 0"
            raise UserError(f"cluster.failures: {shown(text)}: {rule}")
        if kind == "slow_net":
            return _slow_net(SlowNet(at, until, factor, replica, node), given.get("pool"), kind_of)
        what = Slowdown(replica, at, until, factor)
    return OnNode(node, what) if node >= 0 else what


def _check_place(text: str, given: Mapping[str, str], counts: Counts | None) -> None:
    """Raise UserError if a text names several places, or a replica or node that does not exist."""
    if len(places := [key for key in PLACES if key in given]) > 1:
        raise UserError(f"cluster.failures: {shown(text)}: {places[0]} and {places[1]} are both specified")
    for key in {"replica", "node"} & {*given}:
        number, most = _number(text.partition(":")[0], key, given[key]), getattr(counts, key, None)
        if int(number) != number or (most is not None and number >= most):
            known = f"from 0 to {most - 1}" if most is not None else "a whole number"
            raise UserError(f"cluster.failures: {shown(text)}: the {key} must be {known}")


def ns_of(seconds: float | str) -> int:
    """Return seconds as a whole number of ns; exact for a text."""
    return int((Decimal(str(seconds)) * NS).to_integral_value())


def seconds_of(ns: int) -> str:
    """Return ns as seconds, exactly."""
    whole, rest = divmod(ns, NS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def _add(given: Mapping[str, str], at: int, kind_of: KindOf | None) -> Add:
    added = _kind("add", given, kind_of)
    return Add(at, ns_of(given["startup"]) if "startup" in given else added.start_ns, added.pool)


def _slow_net(slow: SlowNet, pool: str | None, kind_of: KindOf | None) -> SlowNet:
    if slow.factor < 1:
        raise UserError(f"cluster.failures: slow_net: factor is {slow.factor:g} but must be at least 1")
    return slow if pool is None else slow._replace(pool=_kind("slow_net", {"pool": pool}, kind_of).pool)


def _upgrade(text: str, given: Mapping[str, str], at: int, kind_of: KindOf | None) -> Upgrade:
    batch, surge = given.get("batch", "1"), given.get("surge", "0")
    if not (batch.isascii() and batch.isdecimal() and 1 <= int(batch) <= 4096):
        raise UserError(f"cluster.failures: {shown(text)}: batch must be a whole number from 1 to 4096")
    if surge not in ("0", "1"):
        raise UserError(f"cluster.failures: {shown(text)}: surge must be 0 or 1")
    old, new = _kind("upgrade", {"pool": given.get("pool", "")}, kind_of), _kind("upgrade", given, kind_of)
    start_ns = ns_of(given["startup"]) if "startup" in given else new.start_ns
    upgrade = Upgrade(at, start_ns, old.pool, new.pool, int(batch), surge == "1")
    return upgrade._replace(grace_ns=ns_of(given["grace"])) if "grace" in given else upgrade


def _kind(kind: str, given: Mapping[str, str], kind_of: KindOf | None) -> Kind:
    """Return the replicas of a pool, or those that are like them but for GPU or model."""
    names = [given.get(key, "") for key in NAMES]
    return kind_of(kind, *names) if kind_of is not None else Kind(0, 0)


def _number(kind: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and 0 <= number <= 1e7):
        raise UserError(f"cluster.failures: {kind}: {key} is {shown(value)} but must be a number from 0 to 1e7")
    return number
