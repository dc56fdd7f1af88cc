"""Lengths of the runs of a search: long enough for a queue to show what it does to the SLO, and no longer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.goals import Goal
from servesim.workload.trace import Trace

STEP, MOST = 500, 20_000
"""Step and maximum of the length of a run, in requests."""
WAITS, ANSWERS = 10.0, 2.0
"""Multiples of the limit of TTFT or of the whole request, and of the time that an answer may take, that a full run
lasts. With 10, a deployment that such a limit binds is overestimated by at most a tenth, all of them alike."""
RELAXATIONS = 10.0
"""Number of relaxation times that a full run lasts."""

EARLY, EARLIEST = 4, 200
"""Factor by which the first part of a run is shorter than the whole, and its minimum length in requests."""


def early_misses(share: float, ends: tuple[float, float]) -> float:
    """Return the share of the requests that count in the first part of a run, above which the whole run misses a goal
    of `share` whatever comes later. `ends` are the shares of the whole that are left out at its start and end; the part
    leaves out the same requests at its start, and none at its end."""
    warmup, cooldown = ends
    return (1 - share) * EARLY * (1 - warmup - cooldown) / (1 - EARLY * warmup)


def horizon_s(goals: Sequence[Goal], output: float) -> float:
    """Return the seconds of arrivals after which a queue that grows misses the goals of a workload, whose answers have
    `output` tokens on average: many times the limits, since a shorter run only fills the queue."""
    found = [0.0]
    for goal in goals:
        ttft, tpot, e2e = (goal.limits.get(name, 0.0) / 1e3 for name in ("ttft", "tpot", "e2el"))
        found.append(WAITS * max(ttft, e2e) + ANSWERS * output * tpot)
    return max(found)


def relaxation_s(goals: Sequence[Goal], prompts: NDArray[np.int64]) -> float:
    """Return the relaxation time of a queue that just meets the strictest TTFT goal, in s, per request/s that is
    served.

    Near saturation, waiting times are exponential (Kingman 1962): a share s waits at most t if the mean wait W is
    t / ln(1 / (1 - s)). The queue forgets its past in 4 W^2 x rate / (1 + c^2), with c the coefficient of variation of
    the service times, here of the prompts (Abate and Whitt 1987, for the M/G/1 queue).
    """
    waits = [
        goal.limits["ttft"] / 1e3 / math.log(1 / (1 - min(goal.share, 0.999)))
        for goal in goals
        if "ttft" in goal.limits
    ]
    spread = float(prompts.var()) / max(float(prompts.mean()) ** 2, 1.0)
    return 4 * min(waits, default=0.0) ** 2 / (1 + spread)


@dataclass(frozen=True)
class Length:
    """Length of runs, and the stretch of a trace that they replay."""

    least: int | None = None
    """Minimum number of requests; None for the whole trace."""
    seconds: float = 0.0
    """Minimum duration of the arrivals."""
    relaxation_s: float = 0.0
    """Minimum duration of the arrivals, per request/s."""
    work: tuple[float, ...] = ()
    """Cumulative work of the rows of a trace that is not drawn from a distribution; its busiest stretch is replayed."""
    skip: int = 0
    """Number of requests that the question itself skips."""

    def at(self, rate: float) -> int | None:
        """Return the number of requests at a rate, in steps so that runs share traces."""
        if self.least is None:
            return None
        found = min(max(self.least, self._wanted(rate)), MOST)
        return found if not self.work or found < len(self.work) - 1 else None

    def _wanted(self, rate: float) -> int:
        return STEP * math.ceil((self.seconds + self.relaxation_s * rate) * rate / STEP)

    def short(self, rate: float) -> bool:
        """Return whether runs at a rate are shorter than its queue needs, so that they must also show that it stays
        bounded."""
        requests = self.at(rate)
        return self._wanted(rate) > (requests if requests is not None else max(len(self.work) - 1, MOST))

    def settings(self, rate: float) -> dict[str, Any]:
        """Return the settings of a run at a rate."""
        requests = self.at(rate)
        if requests is None:
            return {}
        if not self.work:
            return {"requests": requests}
        done = np.array(self.work)
        return {"requests": requests, "skip": self.skip + int(np.argmax(done[requests:] - done[:-requests]))}

    def early(self, rate: float) -> dict[str, Any]:
        """Return the settings of the first part of a run at a rate, or none if the whole run is as short."""
        whole = self.settings(rate)
        requests = int(whole.get("requests", len(self.work) - 1)) // EARLY
        return {**whole, "requests": requests} if requests >= EARLIEST else {}


def work_of(trace: Trace) -> tuple[float, ...]:
    """Return the cumulative work of a trace's rows, in mean requests: a prompt and an answer of mean length count
    half each. It begins with 0."""
    prompt, output = (lengths / max(float(lengths.mean()), 1.0) for lengths in (trace.prompt_len, trace.output_len))
    return (0.0, *np.cumsum((prompt + output) / 2).tolist())
