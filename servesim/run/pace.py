"""How fast a trace comes: at a rate, or so many times as fast as it was recorded."""

from __future__ import annotations

import math
from typing import TypeVar

from servesim.workload.trace import Trace
from servesim.workload.trace_stream import TraceStream

Rate = float | str
"""Requests/s, or a factor such as `3x`."""
T = TypeVar("T", Trace, TraceStream)


def parse_rate(value: float | str) -> Rate:
    """Return a rate as a number, or a factor as text such as `3x`; ValueError for anything else."""
    text = str(value).strip().lower()
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        raise ValueError("must be requests/s, or a factor such as 3x") from None
    if not number > 0:
        raise ValueError("must be above 0")
    if not text.endswith("x"):
        return number
    if number == math.inf:
        raise ValueError("all at once is inf, without an x")
    return f"{number!r}x".replace(".0x", "x")


def factor_of(rate: Rate | None) -> float | None:
    """Return the factor where the rate is one."""
    return float(rate[:-1]) if isinstance(rate, str) else None


def paced(trace: T, rate: Rate | None) -> T:
    """Return the trace at this rate: all gaps are scaled by one factor, so that peaks stay peaks."""
    if rate is None:
        return trace
    return trace.with_rate(rate) if isinstance(rate, float) else trace.faster(float(rate[:-1]))


def mean_rate(trace: Trace) -> float | None:
    """Return the mean arrivals per second; None where they come at once."""
    span = int(trace.arrival_ns[-1] - trace.arrival_ns[0]) if len(trace) else 0
    return (len(trace) - 1) / span * 1e9 if span > 0 else None


def rate_words(rate: Rate) -> str:
    """Return a rate in words, such as "4.4 requests/s" and "3x the recorded rate"."""
    if isinstance(rate, str):
        return f"{rate} the recorded rate" if rate.endswith("x") else f"{rate} requests/s"
    return f"{rate:g} requests/s"
