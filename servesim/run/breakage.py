"""From the settings of what breaks to `servesim.engine.failures`."""

from __future__ import annotations

import math

from servesim.engine.failures import Crash, Failures, Slowdown
from servesim.errors import UserError, shown, suggest
from servesim.metrics.requests import SECOND
from servesim.parsing import pairs
from servesim.run.scenario import Scenario
from servesim.workload.trace import Trace

KEYS = {"crash": ("replica", "at", "restart"), "slow": ("replica", "at", "until", "factor")}


def failures_of(scenario: Scenario, trace: Trace) -> Failures | None:
    """Return what breaks; None: nothing. UserError where it cannot."""
    cluster = scenario.cluster
    if not cluster.failures:
        return None
    if trace.samples is not None:
        raise UserError("cluster.failures: requests ask for several samples (n > 1), which are not routed again")
    crashes, slowdowns = [], []
    for text in cluster.failures:
        kind, _, rest = text.partition(":")
        if kind not in KEYS:
            raise UserError(f"cluster.failures: unknown failure {shown(kind)}{suggest(kind, KEYS)}")
        values = {key: _number(kind, key, value) for key, value in pairs(text, rest).items()}
        if missing := [key for key in KEYS[kind] if key not in values and key != "restart"]:
            raise UserError(f"cluster.failures: {shown(text)}: {missing[0]} is missing")
        replica, at = int(values["replica"]), _ns(values["at"])
        if replica != values["replica"] or replica >= scenario.replicas:
            raise UserError(f"cluster.failures: {shown(text)}: there are replicas 0 to {scenario.replicas - 1}")
        if kind == "crash":
            crashes.append(Crash(replica, at, _ns(values["restart"]) if "restart" in values else -1))
            continue
        until, factor = _ns(values["until"]), values["factor"]
        if until <= at or not 0 < factor <= 1e6:
            raise UserError(f"cluster.failures: {shown(text)}: until must be after at, factor more than 0")
        slowdowns.append(Slowdown(replica, at, until, factor))
    return Failures(
        tuple(crashes),
        tuple(slowdowns),
        detect_ns=_ns(cluster.detection_s),
        reroutes=cluster.reroutes,
        backoff_ns=_ns(cluster.reroute_delay_s),
        seed=scenario.seed,
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
        raise UserError(f"cluster.failures: {kind}: {key} is {shown(value)}, must be a number from 0 to 1e7")
    return number
