"""Arrival processes, which give the time of request i in seconds.

Each process is a function (call, rows, rate, seed) -> seconds, registered in PROCESSES under its name.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.errors import UserError, suggest
from servesim.workload.trace import Ints

from ..spec import Call

Floats = NDArray[np.float64]
MOST_CYCLES = 10_000_000
"""Maximum number of mmpp cycles."""


def poisson(call: Call, rows: Ints, rate: float, seed: int) -> Floats:
    """Draw exponential gaps."""
    with np.errstate(over="ignore"):  # infinite times are rejected later, as other excessive times are
        return np.asarray(np.cumsum(poisson_gaps(call, rows, seed)) / rate)


def poisson_gaps(call: Call, rows: Ints, seed: int) -> Floats:
    """Return the exponential gaps of these rows, with mean 1."""
    call.floats("")
    return draws.exponential(seed, "arrivals", rows)


def constant(call: Call, rows: Ints, rate: float, seed: int) -> Floats:
    """Place one request every 1/rate seconds from 0."""
    call.floats("")
    return np.asarray(rows / rate, dtype=np.float64)


def gamma(call: Call, rows: Ints, rate: float, seed: int) -> Floats:
    """Draw gamma gaps with coefficient of variation cv; vLLM's burstiness is 1/cv^2."""
    return np.asarray(np.cumsum(gamma_gaps(call, rows, seed)) / rate)


def gamma_gaps(call: Call, rows: Ints, seed: int) -> Floats:
    """Return the gamma gaps of these rows, with mean 1."""
    args = call.floats("cv", "burstiness")
    value = next(iter(args.values()))
    if value <= 0:
        raise UserError(f"synth: arrivals=gamma: {next(iter(args))} is {value:g} but must be positive")
    cv = args["cv"] if "cv" in args else value**-0.5
    if not 1e-3 <= cv <= 1e3:
        raise UserError(f"synth: arrivals=gamma: the coefficient of variation is {cv:g} but must be from 0.001 to 1000")
    return draws.gamma(seed, "arrivals", rows, cv=cv)


def mmpp(call: Call, rows: Ints, rate: float, seed: int) -> Floats:
    """Draw Poisson arrivals whose rate switches: it is `ratio` times as high during "on" states, which last `on` s on
    average, as during the "off" states that follow, which last `off` s on average.

    State durations are exponential and do not depend on the rate; the rates are set so that the mean is `rate`.
    Arrivals are unit-rate Poisson points mapped through the cumulative rate, so another rate uses the same draws.
    """
    args = call.floats("ratio on off")
    if min(args.values()) <= 0:
        raise UserError("synth: arrivals=mmpp: 'ratio', 'on' and 'off' must be positive")
    ratio, on, off = args["ratio"], args["on"], args["off"]
    low = rate * (on + off) / (ratio * on + off)
    points = np.cumsum(draws.exponential(seed, "arrivals", rows))
    if points[-1] * 1.5 > MOST_CYCLES * rate * (on + off):
        raise UserError(
            f"synth: arrivals=mmpp: 'on' and 'off' are too short: there would be more than {MOST_CYCLES:,} of each"
        )
    cycles = int(points[-1] / (rate * (on + off)) * 1.5) + 20
    while True:
        stays = draws.exponential(seed, "arrival states", np.arange(cycles)[:, None], np.arange(2)) * [on, off]
        times = np.concatenate(([0.0], np.cumsum(stays)))
        mass = np.concatenate(([0.0], np.cumsum(stays * [low * ratio, low])))
        if mass[-1] >= points[-1]:
            return np.interp(points, mass, times)
        cycles *= 2


PROCESSES: dict[str, Callable[[Call, Ints, float, int], Floats]] = {
    "poisson": poisson,
    "constant": constant,
    "gamma": gamma,
    "mmpp": mmpp,
}
GAPS: dict[str, Callable[[Call, Ints, int], Floats]] = {"poisson": poisson_gaps, "gamma": gamma_gaps}
"""Processes whose gaps are independent of each other."""


def draw(call: Call, rows: Ints, rate: float, seed: int) -> Floats:
    """Draw arrival times, in seconds, from the named process."""
    if call.name not in PROCESSES:
        raise UserError(f"synth: unknown arrivals {call.name!r}{suggest(call.name, PROCESSES)}")
    return PROCESSES[call.name](call, rows, rate, seed)


class Clock:
    """Arrival times of successive rows, with exactly the floats that `draw` gives for all rows in one call."""

    def __init__(self, call: Call, rate: float, seed: int) -> None:
        self._call, self._rate, self._seed = call, rate, seed
        self._sum = 0.0  # sum of the gaps so far

    def draw(self, rows: Ints) -> Floats:
        """Return the arrival times of the next rows."""
        if self._call.name not in GAPS:
            return draw(self._call, rows, self._rate, self._seed)
        sums = np.cumsum(np.concatenate([[self._sum], GAPS[self._call.name](self._call, rows, self._seed)]))
        self._sum = float(sums[-1])
        return np.asarray(sums[1:] / self._rate)
