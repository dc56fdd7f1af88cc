"""Length distributions: the number of tokens of request i is the inverse distribution function at one keyed uniform
draw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.errors import UserError, suggest
from servesim.workload.trace import Ints

from ..spec import Call, to_float

Floats = NDArray[np.float64]
MAX_TOKENS = 1 << 40
Z95 = 1.6448536269514722  # the 95th percentile of the standard normal


def fixed(call: Call, u: Floats) -> Floats:
    return np.full(len(u), call.floats("tokens")["tokens"])


def uniform(call: Call, u: Floats) -> Floats:
    """Draw integers from low to high, inclusive."""
    args = call.floats("low high")
    low, high = args["low"], args["high"]
    if low > high:
        raise UserError(f"synth: {call.key}=uniform: low {low:g} is above high {high:g}")
    return np.asarray(np.floor(low + u * (high - low + 1)))


def lognormal(call: Call, u: Floats) -> Floats:
    """Draw from a lognormal given by its median and 95th percentile, or by the mean of the lengths and the sigma of
    their logarithm."""
    from scipy.special import ndtri

    args = call.floats("p50 p95 max=0", "mean sigma max=0")
    if "p50" in args:
        if not 0 < args["p50"] <= args["p95"]:
            raise UserError(f"synth: {call.key}=lognormal: must have 0 < p50 <= p95")
        mu, sigma = np.log(args["p50"]), np.log(args["p95"] / args["p50"]) / Z95
    else:
        if args["mean"] <= 0 or args["sigma"] < 0:
            raise UserError(f"synth: {call.key}=lognormal: must have mean > 0 and sigma >= 0")
        sigma = args["sigma"]
        mu = np.log(args["mean"]) - sigma**2 / 2
    values = np.exp(mu + sigma * ndtri(u))
    return np.asarray(np.minimum(values, args["max"]) if args["max"] > 0 else values)


def empirical(call: Call, u: Floats) -> Floats:
    """Draw by linear interpolation between equally spaced quantiles, from the minimum to the maximum:
    empirical(10|50|400)."""
    if list(call.args) != ["0"]:
        raise UserError(f"synth: {call.key}=empirical: write empirical(MIN|...|MAX), with equally spaced quantiles")
    table = [to_float(f"synth: {call.key}=empirical", v) for v in call.args["0"].split("|")]
    if table != sorted(table):
        raise UserError(f"synth: {call.key}=empirical: quantiles must not decrease")
    return np.interp(u, np.linspace(0, 1, len(table)), table)


DISTRIBUTIONS: dict[str, Callable[[Call, Floats], Floats]] = {
    "fixed": fixed,
    "uniform": uniform,
    "lognormal": lognormal,
    "empirical": empirical,
}


def draw(call: Call, rows: Ints, seed: int, samples: Ints | int = 0) -> Ints:
    """Draw the token counts of the rows (or, if sample numbers are given, of those samples), rounded and at least 1;
    the draws are keyed by the name of the spec's key (prompt, output)."""
    if call.name and call.name.lstrip("+-").replace(".", "", 1).isdigit():
        call = Call(call.key, "fixed", {"0": call.name})
    if call.name not in DISTRIBUTIONS:
        raise UserError(f"synth: {call.key}: unknown distribution {call.name!r}{suggest(call.name, DISTRIBUTIONS)}")
    if not len(rows):
        return np.zeros(0, np.int64)
    values = DISTRIBUTIONS[call.name](call, draws.uniform(seed, f"{call.key} length", rows, samples))
    if call.name in ("fixed", "uniform", "empirical") and values.min() < 1:
        raise UserError(f"synth: {call.key}={call.name}: lengths must be at least 1, not {values.min():g}")
    if values.max() > MAX_TOKENS:
        raise UserError(f"synth: {call.key}={call.name}: {values.max():g} tokens are too many")
    return np.maximum(np.rint(values), 1).astype(np.int64)
