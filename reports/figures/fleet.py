"""Replicas that start, stop and fail: arrivals, the number of replicas in each state, and the life of each replica."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from servesim.metrics.requests import SECOND
from servesim.reports.figures.axes import clock, name_ticks, thousands
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide

STATES = (
    ("ready", "teal", "ready"),
    ("starting", "amber", "starting"),
    ("draining", "violet", "draining"),
    ("failed", "rose", "failed, and detected"),
    ("crashed", "slate", "crashed, not detected yet"),
)
EACH = 24
"""Maximum number of replicas drawn individually."""
BINS = 240
Life = list[tuple[float, float, str]]
"""Tuples of (from, to, state), in seconds from the first arrival."""


def lives(run: Run) -> list[Life]:
    """Return the states of each replica by index, or nothing if none changed."""
    found: list[Life] = []
    first, end = run.begin_ns / SECOND, (run.end_ns - run.begin_ns) / SECOND
    for one in run.summary.get("replicas") or []:
        changes = [(max(at - first, 0.0), state) for at, state in one.get("states", ())]
        bounds = [*changes, (end, "gone")]
        found.append([(a, min(b, end), state) for (a, state), (b, _) in pairwise(bounds) if state != "gone" and b > a])
    return found if any(len(life) > 1 for life in found) or len({life[0][0] for life in found if life}) > 1 else []


def fleet(run: Run) -> Drawing | None:
    """Draw arrivals, replicas by state and, if there are at most `EACH` replicas, the life of each; return None if no
    state changed."""
    found = lives(run)
    if not found:
        return None
    end = (run.end_ns - run.begin_ns) / SECOND
    unit, name = clock(end)
    edges = np.linspace(0, end, BINS + 1)
    counts = {state: _present(found, state, edges) for state, _, _ in STATES}
    shown = [state for state in STATES if counts[state[0]].any()]
    arrived = (np.sort(run.requests["arrival_ns"]) - run.begin_ns) / SECOND
    rate = np.histogram(arrived, edges)[0] / np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2 / unit
    single = len(found) <= EACH

    def paint(figure: Any, narrow: bool) -> None:
        heights = {"height_ratios": [2, 3, 0.35 * len(found) + 0.6] if single else [2, 3]}
        grid = figure.subplots(len(heights["height_ratios"]), 1, sharex=True, gridspec_kw=heights)
        grid[0].plot(middles, rate, color=INK["blue"], linewidth=1.4)
        grid[0].set_title("Arrivals, requests/s", pad=5)
        grid[1].stackplot(
            middles, *[counts[s] for s, _, _ in shown], colors=[INK[c] for _, c, _ in shown], alpha=0.8, linewidth=0
        )
        grid[1].set_title("Replicas", pad=5)
        for axes, counted in zip(grid, ("requests/s", "replicas"), strict=False):
            axes.set_ylabel(counted)
            axes.set_ylim(bottom=0)
            thousands(axes.yaxis)
        if single:
            _each(grid[2], found, unit)
        grid[0].set_xlim(0, end / unit)
        grid[-1].set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.95, bottom=0.1, hspace=0.34)

    most = {words: round(float(counts[state].max())) for state, _, words in shown}
    alt = "Replicas over time, at most " + ", ".join(f"{n} {words}" for words, n in most.items()) + "."
    height = 260 + (34 + 13 * len(found) if single else 0)
    legend = (("blue", "arrivals"), *((colour, words) for _, colour, words in shown))
    return wide("fleet", "Replicas that come and go", alt, paint, (height, height + 30), legend=legend)


def _each(axes: Any, found: list[Life], unit: float) -> None:
    """Draw one bar per replica, colored by its states."""
    colours = {state: colour for state, colour, _ in STATES}
    for y, life in enumerate(found):
        for begin, stop, state in life:
            axes.barh(y, (stop - begin) / unit, left=begin / unit, height=0.7, color=INK[colours[state]], linewidth=0)
    axes.set_ylim(len(found) - 0.4, -0.6)
    step = max(len(found) // 8, 1)
    name_ticks(axes.yaxis, range(0, len(found), step), [str(i) for i in range(0, len(found), step)])
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_title("Each replica", pad=5)
    axes.set_ylabel("replica")


def _present(found: list[Life], state: str, edges: Any) -> Any:
    """Return the mean number of replicas in a state in each bin."""
    total = np.zeros(len(edges) - 1)
    for life in found:
        for begin, end, what in life:
            if what == state:
                total += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
    return total / np.diff(edges)
