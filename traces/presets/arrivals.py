"""Fitted arrivals: a rate profile over time, and gamma gaps in the profile's own (operational) time.

Each minute has the original's number of requests. Within it, request i arrives when the cumulative profile reaches the
sum of the gaps so far. The profile thus represents load variation over 10 s and longer, and the gaps' cv represents
shorter bursts. For an hour-long trace, random counts per minute would miss the original's dispersion by a fifth or
more. A lap has the original's number of requests and duration; longer traces consist of several laps with new draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim import draws
from servesim.workload.trace import Ints

from ..inspect import dispersion, window_counts

Floats = NDArray[np.float64]
STEP_S = 10
STEPS_PER_MINUTE = 6


@dataclass(frozen=True, slots=True)
class ArrivalFit:
    requests: int  # in one lap
    span_s: float
    profile: Floats  # relative rate in each STEP_S window; the span may cut off the last window
    cv: float  # of the gaps in operational time

    def draw(self, requests: int, seed: int) -> Ints:
        """Draw the arrival times (ns) of the first `requests` rows; the first is 0."""
        edges = np.minimum(np.arange(len(self.profile) + 1) * STEP_S, self.span_s)
        mass = np.concatenate(([0.0], np.cumsum(self.profile * np.diff(edges))))
        minutes = np.append(mass[:-1:STEPS_PER_MINUTE], mass[-1])
        counts = np.diff(np.rint(minutes * (self.requests / mass[-1])).astype(np.int64))
        laps = range(-(-requests // self.requests))
        points = (self._points(minutes, counts, lap, seed) for lap in laps)
        times = [np.interp(p, mass, edges) + lap * self.span_s for lap, p in enumerate(points)]
        seconds = np.concatenate(times)[:requests]
        seconds[0] = 0.0  # shifting all times would misalign profile and clock
        return np.rint(seconds * 1e9).astype(np.int64)

    def _points(self, minutes: Floats, counts: Ints, lap: int, seed: int) -> Floats:
        """Return the positions of one lap's requests on the cumulative profile, with gaps scaled to fill each
        minute."""
        rows = np.arange(self.requests, dtype=np.int64) + lap * self.requests
        gaps = draws.gamma(seed, "preset arrivals", rows, cv=self.cv)
        ids = np.arange(len(counts), dtype=np.int64) + lap * len(counts)
        closing = draws.gamma(seed, "preset minutes", ids, cv=self.cv)  # from the last request to the minute's end
        minute = np.repeat(np.arange(len(counts)), counts)
        total = np.bincount(minute, weights=gaps, minlength=len(counts)) + closing
        before = np.concatenate(([0.0], np.cumsum(total - closing)))[minute]
        share = np.clip((np.cumsum(gaps) - before) / total[minute], 0.0, 1.0)
        return np.asarray(minutes[minute] + share * np.diff(minutes)[minute])

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "span_s": round(self.span_s, 3),
            "cv": round(self.cv, 4),
            "step_s": STEP_S,
            "profile": np.round(self.profile, 4).tolist(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ArrivalFit:
        return cls(data["requests"], data["span_s"], np.array(data["profile"]), data["cv"])


def smoothed_profile(arrival_ns: Ints, keep: float) -> Floats:
    """Return the requests/s per window with the sampling noise removed: each window keeps the given share of its
    deviation from its minute's rate. Empty windows stay empty, and minutes keep their counts."""
    counts = window_counts(arrival_ns, STEP_S, whole=False).astype(np.float64)
    span_s = float(arrival_ns[-1] - arrival_ns[0]) / 1e9
    widths = np.diff(np.minimum(np.arange(len(counts) + 1) * STEP_S, span_s))
    starts = np.arange(0, len(counts), STEPS_PER_MINUTE)
    minute = np.arange(len(counts)) // STEPS_PER_MINUTE
    total, time = np.add.reduceat(counts, starts), np.add.reduceat(widths, starts)
    expected = (total / time)[minute] * widths
    smooth = np.where(counts > 0, np.maximum(expected + keep * (counts - expected), 0.0), 0.0)
    kept = np.add.reduceat(smooth, starts)
    scale = np.divide(total, kept, out=np.zeros_like(total), where=kept > 0)
    return np.asarray(smooth * scale[minute] / widths)


def fit_arrivals(arrival_ns: Ints, seeds: range = range(1000, 1012)) -> ArrivalFit:
    """Fit the profile and cv so that their twins, averaged over several seeds, have the original's dispersion at 1 and
    10 s."""
    from scipy.optimize import minimize

    target = np.array([dispersion(arrival_ns, w) for w in (1, 10)], dtype=np.float64)
    start = ArrivalFit(len(arrival_ns), float(arrival_ns[-1] - arrival_ns[0]) / 1e9, np.zeros(0), 1.0)

    def candidate(x: Floats) -> ArrivalFit:
        keep, cv = np.clip(x, [0.0, 0.3], [1.3, 6.0])
        return replace(start, profile=smoothed_profile(arrival_ns, keep), cv=float(cv))

    def loss(x: Floats) -> float:
        fit = candidate(x)
        twins = [fit.draw(len(arrival_ns), seed) for seed in seeds]
        got = np.array([[dispersion(twin, w) for w in (1, 10)] for twin in twins], dtype=np.float64)
        return float((np.log(got.mean(axis=0) / target) ** 2).sum())

    options = {"maxfev": 60, "xatol": 0.005, "fatol": 1e-5}
    found = [minimize(loss, x0, method="Nelder-Mead", options=options) for x0 in ([0.3, 1.0], [0.9, 2.5])]
    return candidate(min(found, key=lambda result: float(result.fun)).x)
