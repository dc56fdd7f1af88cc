"""How fast a trace comes: at a rate, or at a multiple of the recorded one."""

from __future__ import annotations

import math

Rate = float | str
"""Requests/s, or a factor such as `3x`."""


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


def rate_words(rate: Rate) -> str:
    """Return a rate in words, such as "4.4 requests/s" and "3x the recorded rate"."""
    if isinstance(rate, str):
        return f"{rate} the recorded rate" if rate.endswith("x") else f"{rate} requests/s"
    return f"{rate:g} requests/s"
