"""Outcome of a run, measured against the goals of a deployment: the share of good requests overall, by window, and in
the worst window."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.warn import Warn
from servesim.experiments.busy_times import Window, minute_note, window_note, worst_window
from servesim.experiments.goals import Goal, goals_of
from servesim.experiments.metrics import Metric
from servesim.experiments.reasons import Misses, exact_length, misses_of
from servesim.experiments.replicates import Replicates
from servesim.experiments.run_metrics import Run, Slice, measure, part_rows
from servesim.experiments.statistics import mean_interval
from servesim.run.scenario import Scenario

Good = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Rows that count for a goal, and which of them are good."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run."""

    requests: int
    """Number of requests that count."""
    values: Mapping[str, float]
    shares: tuple[float, ...]
    """Share of good requests by goal, NaN if no request arrives in the measured window."""
    parts: tuple[tuple[float, ...], ...]
    """Share of good requests in each window of a recorded trace, by window and goal."""
    worst: tuple[Window | None, ...]
    """Worst window of a recorded trace for each goal. Windows have a given number of minutes."""
    minute: Window | None
    """Worst minute for the goal that is missed by the widest margin."""
    misses: tuple[Misses | None, ...]
    """Requests that miss each goal."""
    unstable: bool
    enough: int | None
    """Number of requests that would tell whether the queue is stable, or None if this run's are enough."""
    busy: float
    """Fraction of time during which the GPUs computed."""
    usd_per_hour: float = 0.0
    """Hourly price of the GPUs that were up."""
    usd_parts: tuple[float, ...] = ()
    """Hourly price of the GPUs that were up, by window of a recorded trace."""
    counted: tuple[int, ...] = ()
    """Number of requests that count for each goal."""

    @property
    def least(self) -> tuple[float, ...]:
        """For each goal, the lower of the share overall and that in the worst window."""
        return tuple(min(share, w.share) if w else share for share, w in zip(self.shares, self.worst, strict=True))


@dataclass(frozen=True)
class Measuring:
    """Settings and methods for measuring the outcomes of runs."""

    metrics: Sequence[Metric]
    goals: Sequence[Goal]
    repeats: Replicates
    ends: tuple[float, float]
    minutes: float
    least: int

    def outcome(self, run: Run) -> Outcome:
        """Return the outcome of a run."""
        steady, arrival_ns = Slice.of(run, *self.ends), run.columns["arrival_ns"]
        rows = steady.rows
        each = self._good(run, rows)
        hourly = (Slice.of(run, *self.ends, window).usd_per_hour for window in self.repeats.windows)
        shares = tuple(share_of(good) if len(rows) else float("nan") for _, good in each)
        parts: list[tuple[float, ...]] = []
        minute = None
        if self.repeats.recorded and len(rows):
            inside = [part_rows(run, window) for window in self.repeats.windows]
            parts = [tuple(share_of(g[part[of]]) for of, g in each) for part in inside if part[rows].any()]
            of, good = each[np.argmin([share - goal.share for share, goal in zip(shares, self.goals, strict=True)])]
            minute = worst_window(arrival_ns[of], good, 1.0, LEAST_IN_A_MINUTE)
        return Outcome(
            requests=len(rows),
            values=measure(run, self.metrics, *self.ends),
            shares=shares,
            parts=tuple(parts),
            worst=self._worst(each, arrival_ns),
            minute=minute,
            misses=tuple(misses_of(run, rows, goal) for goal in self.goals),
            unstable=run.unstable,
            enough=run.summary["stability"]["enough_requests"],
            busy=float(run.summary["engine"]["gpu_busy_share"] or 0.0),
            usd_per_hour=steady.usd_per_hour,
            usd_parts=tuple(usd for usd in hourly if usd == usd),
            counted=tuple(len(of) for of, _ in each),
        )

    def outcomes(self, runs: Sequence[Run] | None) -> list[Outcome]:
        """Return the outcomes of runs, or none if a run failed or has no request in its measured window."""
        found = [self.outcome(run) for run in runs or ()]
        return [] if any(math.isnan(share) for outcome in found for share in outcome.shares) else found

    def _good(self, run: Run, rows: NDArray[np.int64]) -> list[Good]:
        return [(of := goal.counted(run, rows), goal.good(run)[of]) for goal in self.goals]

    def _worst(self, each: Sequence[Good], arrival_ns: NDArray[np.float64]) -> tuple[Window | None, ...]:
        """Return the worst window of a recorded trace for each goal."""
        if not self.repeats.recorded:
            return (None,) * len(self.goals)
        return tuple(worst_window(arrival_ns[of], good, self.minutes, self.least) for of, good in each)

    def alone(self, run: Run, arrival_ns: NDArray[np.int64], paced: bool) -> Outcome:
        """Return the outcome of a run in which every request is served alone, over the requests that would count if
        they arrived at `arrival_ns`. `paced` means that these times are the question's own, so that windows also
        count."""
        start, span = arrival_ns.min(), np.ptp(arrival_ns)
        warmup, cooldown = self.ends
        counts = (arrival_ns >= start + warmup * span) & (arrival_ns <= start + (1 - cooldown) * span)
        rows = np.flatnonzero(counts[: len(run.columns["row"])])
        shares = tuple(shares_of(run, self.goals, rows))
        worst = self._worst(self._good(run, rows if paced else rows[:0]), arrival_ns.astype(np.float64))
        misses = (misses_of(run, rows, goal) for goal in self.goals)
        exact = tuple(exact_length(run, m) if m is not None else None for m in misses)
        return Outcome(len(rows), {}, shares, (), worst, None, exact, False, None, 0.0)


def share_of(good: NDArray[np.bool_]) -> float:
    """Return the share of good requests, or 1 if there are none."""
    return float(good.mean()) if len(good) else 1.0


def shares_of(run: Run, goals: Sequence[Goal], rows: NDArray[np.int64]) -> list[float]:
    """Return the share of good requests among these rows by goal, NaN if there are no rows."""
    return [share_of(goal.good(run)[goal.counted(run, rows)]) if len(rows) else float("nan") for goal in goals]


ATTAINMENT = 0.99
"""Share of good requests required by an SLO without percentiles."""
WINDOW_MINUTES, WINDOW_REQUESTS = 10.0, 300
"""Length in minutes of the windows of a recorded trace in which the SLO must hold, and the minimum number of requests
in a window."""
LEAST_IN_A_MINUTE = 20
"""Minimum number of requests in a minute for the minute to be worth reporting."""


@dataclass(frozen=True)
class Judged:
    """Outcomes of a deployment at one load, judged against the goals."""

    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Upper bound of the 95 % interval of each share, over seeds or over windows of the trace (t)."""
    margin: float
    """Smallest margin of any goal, over the whole trace and in every window. Negative if a goal is missed, and -1 if
    the queue grows."""
    margin_low: float
    """Smallest margin of any goal at the lower bounds of the intervals, or -1 unless the runs show that the queue stays
    bounded."""
    margin_high: float
    """Smallest margin of any goal at the upper bounds of the intervals, or -1 if the runs show that the queue grows."""
    binding: int
    """Index of the goal with the smallest margin."""
    window: Window | None
    """Worst window for that goal."""

    @property
    def carried(self) -> bool:
        """Whether every goal is reached."""
        return self.margin >= 0


def growing(outcomes: Sequence[Outcome]) -> bool:
    """Return whether the queue grows without bound in at least half of the runs at one load."""
    return 2 * sum(outcome.unstable for outcome in outcomes) >= len(outcomes)


def surely(count: int, runs: int) -> bool:
    """Return whether `count` of the runs are too many for a fair coin at a level of 5 %, or all of fewer than five."""
    return count == runs or sum(math.comb(runs, k) for k in range(count, runs + 1)) <= 0.05 * 2**runs


def judge(outcomes: Sequence[Outcome], goals: Sequence[Goal]) -> Judged:
    """Judge the runs of all replicates at one load: one run for a recorded trace, or one per seed for a synthetic
    workload."""
    recorded = outcomes[0].parts
    by_replicate = np.array(recorded or [outcome.shares for outcome in outcomes])
    shares = np.array([outcome.shares for outcome in outcomes]).mean(axis=0)
    # Windows are parts of the trace, so their interval is centered on the share of the whole trace.
    centres = by_replicate.mean(axis=0)
    ends = [
        mean_interval(column, bool(recorded)) if len(column) > 1 else (centre, centre)
        for column, centre in zip(by_replicate.T, centres, strict=True)
    ]
    low, high = shares + (np.array(ends).T - centres)
    worst = outcomes[0].worst if recorded else (None,) * len(goals)
    windows = np.array([(w.share, w.share, w.high) if w else (1, 1, 1) for w in worst]).T
    margins = np.minimum([shares, low, high], windows) - [goal.share for goal in goals]
    binding = int(np.argmin(margins[0]))
    margin, margin_low, margin_high = margins.min(axis=1).tolist()
    if not surely(sum(not outcome.unstable and outcome.enough is None for outcome in outcomes), len(outcomes)):
        margin_low = min(margin_low, -1.0)
    if growing(outcomes):
        margin = min(margin, -1.0)
    if surely(sum(outcome.unstable for outcome in outcomes), len(outcomes)):
        margin_high = min(margin_high, -1.0)
    return Judged(
        tuple(shares.tolist()),
        tuple(max(float(x), 0.0) for x in low),
        tuple(min(float(x), 1.0) for x in high),
        margin,
        margin_low,
        margin_high,
        binding,
        worst[binding],
    )


def busy_notes(name: str, run: Run, scenario: Scenario, repeats: Replicates, ends: tuple[float, float]) -> list[str]:
    """Return notes on what the figures for a whole recorded trace hide: a window or a minute in which the SLO is missed
    by a deployment that meets it overall (for 99 % of the requests, unless the SLO states another share)."""
    goals = goals_of(scenario, ATTAINMENT)
    if not (repeats.recorded and goals):
        return []
    outcome = Measuring((), goals, repeats, ends, WINDOW_MINUTES, WINDOW_REQUESTS).outcome(run)
    if any(not share >= goal.share for share, goal in zip(outcome.shares, goals, strict=True)):
        return []  # the SLO is also missed over the whole trace, as the table shows
    needed, judged, found = [goal.share for goal in goals], judge([outcome], goals), list[str]()
    if not judged.carried and judged.window is not None:
        said = window_note(name, judged.window._asdict(), needed[judged.binding])
        found.append(Warn(f"{said}. Use servesim capacity to find a deployment that meets the SLO in this window."))
    if outcome.minute and outcome.minute.share < min(needed):
        found.append(minute_note(name, outcome.minute._asdict()))
    return found
