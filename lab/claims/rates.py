"""Searches for the load that meets a condition."""

from __future__ import annotations

import math
from collections.abc import Callable


def solve(f: Callable[[float], float], target: float, low: float, high: float, within: float) -> float:
    """Return the argument at which the increasing function f, positive at its ends, reaches `target`, to within
    `within`; if f does not reach it between the ends, return the nearer end. Brent's method on the logarithm of f needs
    a third fewer evaluations than bisection."""
    from scipy.optimize import brentq

    ends = {x: math.log(f(x) / target) for x in (low, high)}
    if ends[low] >= 0 or ends[high] <= 0:
        return low if ends[low] >= 0 else high
    return float(brentq(lambda x: ends[x] if x in ends else math.log(f(x) / target), low, high, xtol=within))


def highest(holds: Callable[[float], bool], low: float, high: float, within: float = 0.03) -> float:
    """Return the highest rate at which a condition holds that fails at higher rates, to a relative distance, by
    bisection of the rate's logarithm. Return `low` if the condition does not hold there."""
    if not holds(low):
        return low
    while high > low * (1 + within):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
