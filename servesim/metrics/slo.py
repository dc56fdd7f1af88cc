"""Limits of latencies (SLOs), as text and as numbers.

    ttft:500  ttft<500ms  ttft<0.5s     a request is good if it is within this limit and all others of the kind (joint)
    ttft:p99<1s  ttft:p99:1000          99 % of the requests are within this limit, regardless of others (each)

Separate several limits by commas or spaces. Limits without a unit are in milliseconds; the units are us, ms, s and min.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servesim.errors import UserError, suggest
from servesim.parsing import listed

SLO_METRICS = ("ttft", "tpot", "e2el")
UNITS_MS = {"": 1.0, "us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}
_PART = re.compile(r"([^:<=]*)(?::\s*p([^:<=]*))?\s*(?::|<=|<)(.*)")
_TIME = re.compile(r"([0-9.e+-]*[0-9.])\s*([a-z]*)")


def parse_slo(text: str) -> dict[str, float]:
    """Return limits in milliseconds by metric, or by metric and percentile (`ttft:p99`) for percentile limits that
    apply independently of each other."""
    limits: dict[str, float] = {}
    for part in (part for several in listed("slo", text) for part in several.split()):
        found = _PART.fullmatch(part)
        if found is None:
            raise UserError(
                f"slo: {part!r} must have the form metric:milliseconds, such as ttft:500, ttft<1s or ttft:p99<1s"
            )
        name, percentile, value = found.groups()
        key = name if percentile is None else f"{name}:p{percentile}"
        if key in limits:
            raise UserError(f"slo: {key} is specified twice")
        limits[key] = milliseconds(name, value)
    check_slo(split_slo(limits)[0])
    return limits


def milliseconds(name: str, value: Any) -> float:
    """Return a limit in milliseconds from a number or a string such as `1s`."""
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    found = _TIME.fullmatch(str(value).strip().lower())
    try:
        if found is None or found[2] not in UNITS_MS:
            raise ValueError
        return float(found[1]) * UNITS_MS[found[2]]
    except ValueError:
        raise UserError(f"slo: {name} is {value!r} but must be a number of milliseconds or a time such as 1s") from None


def is_time(value: Any) -> bool:
    """Return whether a value is text that begins with a number and ends with a unit."""
    return isinstance(value, str) and value[:1].isdecimal() and value[-1:].isalpha()


def split_slo(limits: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Return limits by metric, and the percentiles of limits that apply independently of each other, with the
    percentiles removed from the keys (`ttft:p99`)."""
    plain: dict[str, Any] = {}
    percentiles: dict[str, float] = {}
    for key, limit in limits.items():
        name, colon, text = str(key).partition(":")
        if name in plain:
            raise UserError(f"slo: {name} is specified twice")
        plain[name] = limit
        if colon:
            percentiles[name] = _percentile(name, text)
    return plain, percentiles


def _percentile(name: str, text: str) -> float:
    try:
        percentile = float(text.removeprefix("p"))
    except ValueError:
        percentile = -1.0
    if not (text.startswith("p") and 0 < percentile <= 100):
        raise UserError(f"slo: {name}:{text} is not a percentile, such as {name}:p99")
    return percentile


def check_slo(limits: dict[str, float]) -> dict[str, float]:
    """Return the limits in the order of SLO_METRICS; raise UserError if they are not valid limits."""
    for name, value in limits.items():
        if name not in SLO_METRICS:
            raise UserError(f"slo: unknown metric {name!r}{suggest(name, SLO_METRICS)}")
        if not 0 < value < float("inf"):
            raise UserError(f"slo: {name} is {value:g} but must be a positive number of milliseconds")
    return {name: limits[name] for name in SLO_METRICS if name in limits}


def time_text(ms: float) -> str:
    """Return a limit in readable form, such as "50 ms" and "1 s"."""
    return f"{ms / 1e3:g} s" if ms >= 1e3 else f"{ms:g} ms"
