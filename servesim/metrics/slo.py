"""Limits of latencies (SLOs), as text and as numbers."""

from __future__ import annotations

from servesim.errors import UserError, suggest
from servesim.parsing import listed

SLO_METRICS = ("ttft", "tpot", "e2el")


def parse_slo(text: str) -> dict[str, float]:
    """`ttft:500,tpot:50,e2el:10000` (or with blanks between) as limits in milliseconds."""
    limits: dict[str, float] = {}
    for part in (part for several in listed("slo", text) for part in several.split()):
        name, colon, value = part.partition(":")
        if not colon:
            raise UserError(f"slo: {part!r} is not metric:milliseconds, such as ttft:500")
        if name in limits:
            raise UserError(f"slo: {name} is given twice")
        try:
            limits[name] = float(value)
        except ValueError:
            raise UserError(f"slo: {name} is {value!r}, must be a number of milliseconds") from None
    return check_slo(limits)


def check_slo(limits: dict[str, float]) -> dict[str, float]:
    """Return the limits in the order of SLO_METRICS; UserError where they cannot be limits."""
    for name, value in limits.items():
        if name not in SLO_METRICS:
            raise UserError(f"slo: unknown metric {name!r}{suggest(name, SLO_METRICS)}")
        if not 0 < value < float("inf"):
            raise UserError(f"slo: {name} is {value:g}, must be a positive number of milliseconds")
    return {name: limits[name] for name in SLO_METRICS if name in limits}
