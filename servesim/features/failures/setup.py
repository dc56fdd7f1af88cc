"""Conversion of failure settings into `servesim.features.failures.part`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from servesim.errors import UserError, shown, suggest
from servesim.features.failures.part import Crash, Failures, Slowdown
from servesim.metrics.requests import SECOND
from servesim.parsing import pairs

if TYPE_CHECKING:
    from servesim.features.failures import FailureSettings

KEYS = {"crash": ("replica", "at", "restart"), "slow": ("replica", "at", "until", "factor")}


def failures_of(settings: FailureSettings, replicas: int, seed: int) -> Failures | None:
    """Return the failures of a run with this many replicas, or None if there are none. Raise UserError for failures
    that cannot happen."""
    if not settings.failures:
        return None
    crashes, slowdowns = [], []
    for text in settings.failures:
        kind, _, rest = text.partition(":")
        if kind not in KEYS:
            raise UserError(f"cluster.failures: unknown failure {shown(kind)}{suggest(kind, KEYS)}")
        values = {key: _number(kind, key, value) for key, value in pairs(text, rest).items()}
        if missing := [key for key in KEYS[kind] if key not in values and key != "restart"]:
            raise UserError(f"cluster.failures: {shown(text)}: {missing[0]} is missing")
        replica, at = int(values["replica"]), _ns(values["at"])
        if replica != values["replica"] or replica >= replicas:
            raise UserError(f"cluster.failures: {shown(text)}: the replica must be from 0 to {replicas - 1}")
        if kind == "crash":
            crashes.append(Crash(replica, at, _ns(values["restart"]) if "restart" in values else -1))
            continue
        until, factor = _ns(values["until"]), values["factor"]
        if until <= at or not 0 < factor <= 1e6:
            rule = "'until' must be later than 'at', and 'factor' must be greater than 0"
            raise UserError(f"cluster.failures: {shown(text)}: {rule}")
        slowdowns.append(Slowdown(replica, at, until, factor))
    return Failures(
        tuple(crashes),
        tuple(slowdowns),
        detect_ns=_ns(settings.detection_s),
        reroutes=settings.reroutes,
        backoff_ns=_ns(settings.reroute_delay_s),
        seed=seed,
    )


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)


def _number(kind: str, key: str, value: object) -> float:
    if key not in KEYS[kind]:
        raise UserError(f"cluster.failures: {kind}: unknown key {shown(key)}{suggest(key, KEYS[kind])}")
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if not (math.isfinite(number) and 0 <= number <= 1e7):
        raise UserError(f"cluster.failures: {kind}: {key} is {shown(value)} but must be a number from 0 to 1e7")
    return number
