"""Searches for the load at which something happens."""

from __future__ import annotations

import math
from collections.abc import Callable


def solve(f: Callable[[float], float], target: float, low: float, high: float, steps: int) -> float:
    """Where the rising function f reaches `target`, by bisection of the interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < target else (low, middle)
    return (low + high) / 2


def highest(holds: Callable[[float], bool], low: float, high: float, within: float = 0.03) -> float:
    """The highest rate at which a condition holds that higher rates break, to a relative distance, by bisection of its
    logarithm. `low` if it does not hold there."""
    if not holds(low):
        return low
    while high > low * (1 + within):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
