"""Test of whether the queue is still growing when arrivals end; if it is, percentiles depend on the trace's length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from servesim.contracts.figures import Figure, Group, Summary
from servesim.metrics.load import TENTHS, Floats, Load
from servesim.schemas import COUNT, FLAG, NUMBER, a_list, or_null

if TYPE_CHECKING:
    from servesim.metrics.requests import Requests

SERVICES = 20
"""Minimum arrival span, in mean times in service; over a shorter span, a server may still be filling up."""
SINCE = range(2, 7)
"""Tenths from which growth to the last tenth is measured. During the first two, the server may still be filling up."""
STILL = 0.4
"""Growth per arrival in the last three tenths, relative to all growth per arrival, below which the queue is leveling
off."""
SURE, SUSPECT, SURE_SHORT = 1.7, 1.0, 4.0
"""Thresholds for growth, in standard deviations of a random walk: growth is above the first in an unstable run, below
the second in a stable run, and above the third in an unstable run of fewer than `SERVICES` times in service. Chosen on
5,855 simulated queues below capacity (tests/support/queues.py), of which 0.4 % are called unstable with these
values."""
KEPT, SUSPECT_KEPT, KEPT_SHORT = 0.03, 0.04, 0.08
"""The same thresholds for growth relative to the arrivals in the same period; at a load of 1.1, growth is 9 % of
them."""
FEWEST = 5.0
"""Minimum increase in the number of requests that counts as growth."""
MOST_CV2 = 3.0
"""Cap on the squared coefficient of variation of the time in service; beyond it, variation is not considered chance."""

GROWING = "the queue was still growing when arrivals ended; latencies depend on the trace's length"
"""Meaning of an unstable run."""


@dataclass(frozen=True)
class Verdict:
    """Whether the queue of a run is stable."""

    says: Literal["stable", "unstable", "too short"]
    enough: int | None = None
    """If the run is too short: the number of requests of the same traffic that would probably suffice for a verdict."""


@dataclass(frozen=True)
class Growth:
    """Growth of a number of requests from one tenth to the last."""

    requests: float
    arrivals: float
    """Number of requests that arrived in that period, from the middle of the first of these tenths to that of the
    last."""
    recent: float
    """Growth in the last three tenths."""
    recent_arrivals: float

    def exceeds(self, deviations: float, variance: float, kept: float) -> bool:
        """Return whether the growth exceeds `deviations` standard deviations of a random walk with this `variance` per
        arrival, exceeds the share `kept` of the arrivals, and is not leveling off."""
        least = max(FEWEST, kept * self.arrivals, deviations * math.sqrt(variance * self.arrivals))
        still = STILL * self.requests * self.recent_arrivals / max(self.arrivals, 1.0)
        return self.requests > least and self.recent > still


def judge(load: Load) -> Verdict:
    """Return whether the number in the system rises beyond what the arrivals explain.

    Growth is the increase, from some tenth to the last, in both the number in the system and its excess over the
    explained number. Chance is modeled as a random walk, because the number in a system near capacity moves as arrivals
    minus departures do (Whitt, Stochastic-Process Limits, 2002, chapter 9). Growth that a drift of the arrival rate may
    cause is not called stable; a longer run would tell.
    """
    near, wide = dispersion(load)
    grown = list(growths(load, load.in_system, load.explained))
    waits = growths(load, load.waiting, np.zeros(TENTHS))  # in a heavy overload, early requests wait long, too
    if any(g.exceeds(SURE_SHORT, wide, KEPT_SHORT) for g in (*grown, *waits)):
        return Verdict("unstable")
    if load.span_ns < SERVICES * load.service_ns:
        return Verdict("too short", _rounded(load.arrived[-1] * SERVICES * load.service_ns / load.span_ns))
    if any(g.exceeds(SURE, wide, KEPT) for g in grown):
        return Verdict("unstable")
    suspect = [g for g in grown if g.exceeds(SUSPECT, near, SUSPECT_KEPT)]
    if not suspect:
        return Verdict("stable")
    times = min(wide * g.arrivals * (SURE / g.requests) ** 2 for g in suspect)
    return Verdict("too short", _rounded(load.arrived[-1] * max(times, 2.0)))


def _rounded(requests: float) -> int:
    """Return a number of requests, which is only an estimate, rounded up to two significant digits."""
    unit: int = 10 ** max(math.floor(math.log10(requests)) - 1, 0)
    return math.ceil(requests / unit) * unit


def growths(load: Load, number: Floats, explained: Floats) -> Iterator[Growth]:
    """Yield the growth of a number, given by tenth, from each tenth of `SINCE` to the last: the smaller of the increase
    of the number and that of its excess over `explained`."""
    middle = (load.arrived[1:] + load.arrived[:-1]) / 2
    risen = np.minimum(number[-1] - number, (number - explained)[-1] - (number - explained))
    for since in SINCE:
        yield Growth(
            float(risen[since]), float(middle[-1] - middle[since]), float(risen[-3]), float(middle[-1] - middle[-3])
        )


def dispersion(load: Load) -> tuple[float, float]:
    """Return two estimates of the variance per arrival of arrivals minus services: from differences between neighboring
    tenths, and from differences between all tenths, to which a drift of the arrival rate contributes."""
    counts = np.diff(load.arrived)
    mean, service = max(float(counts.mean()), 1e-9), min(load.service_cv2, MOST_CV2)
    near = max(1.0, float((np.diff(counts) ** 2).mean()) / 2 / mean) + service
    return near, max(near, float(counts.var(ddof=1)) / mean + service)


def stability(requests: Requests) -> dict[str, Any]:
    """Return the verdict and its basis: mean numbers of requests waiting and in the system in each tenth of the arrival
    span."""
    load = requests.load()
    found = Verdict("stable") if load is None else judge(load)
    return {
        "unstable": found.says == "unstable",
        "decided": found.says != "too short",
        "enough_requests": found.enough,
        "waiting_by_tenth": None if load is None else load.waiting.tolist(),
        "in_system_by_tenth": None if load is None else load.in_system.tolist(),
    }


def _queue(summary: Summary) -> str:
    found = summary["stability"]
    if not summary["requests"]["completed"]:
        return "none: nothing was served"
    if found["unstable"]:
        return "UNSTABLE"
    if found["decided"]:
        return "stable"
    return f"too short to tell: about {found['enough_requests']:,} requests are needed"


BY_TENTH = or_null(a_list(NUMBER))
STABILITY = Group(
    "stability",
    "queue",
    (
        Figure("unstable", "whether the queue was still growing when arrivals ended", itemgetter("unstable"),
               schema=FLAG),
        Figure("decided",
               "`false` if the trace is too short for a verdict: it spans fewer than 20 mean service times, the "
               "queue grows only a little more than chance explains, or the queue grows together with the arrival rate",
               itemgetter("decided"), schema=FLAG),
        Figure("enough_requests",
               "number of requests with the same traffic that would probably be enough for a verdict. `null` if this "
               "run is long enough",
               itemgetter("enough_requests"), schema=or_null(COUNT)),
        Figure("waiting_by_tenth", "mean number of waiting requests in each tenth of the arrival span",
               itemgetter("waiting_by_tenth"), schema=BY_TENTH),
        Figure("in_system_by_tenth",
               "mean number of requests in the system in each tenth of the arrival span. Growth that the arrivals "
               "explain is subtracted before the verdict", itemgetter("in_system_by_tenth"), schema=BY_TENTH),
    ),
    doc="Latencies of an unstable run depend on the trace's length. A run is unstable if the number of requests in the "
    "system still grows by more than arrivals and chance explain. The growth explained by arrivals assumes that "
    "later requests stay in the system as long as early requests did. The verdict was tested on held-out simulated "
    "queues. Of 2,324 queues below capacity, 0.4 % are called unstable, and 2.3 % are called too short to tell. Of "
    "97 queues with a load of at least 1.1 for at least 500 service times, 93 % are called unstable, and 3 % are "
    "called stable "
    "(`python -m tests.support.queues`).",
    rows=(("queue", _queue),),
    source=lambda m: stability(m.requests),
)  # fmt: skip
