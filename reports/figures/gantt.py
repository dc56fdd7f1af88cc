"""Requests as bars: waiting, prefill, decode."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from servesim.contracts.request import State
from servesim.reports.figures.axes import name_ticks, spans
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import seconds

MOST = 40
TIMES = ("arrival_ns", "scheduled_ns", "first_token_ns", "last_token_ns")
CLOCK = "seconds since the first arrival"
PHASES = (("amber", "waiting"), ("violet", "prompt"), ("blue", "output tokens"))


def window_of(run: Run) -> tuple[float, float]:
    """Return a window in seconds from the first arrival: `MOST` arrivals around the request with the longest wait for
    its first token."""
    first = np.where(run.done, run.requests["first_token_ns"] - run.requests["arrival_ns"], -1)
    order = np.argsort(run.requests["arrival_ns"], kind="stable")
    at = int(np.flatnonzero(order == int(first.argmax()))[0])
    low = max(min(at - MOST // 2, len(order) - MOST), 0)
    shown = order[low : low + MOST]
    begin = run.requests["arrival_ns"][shown].min()
    ends = run.requests["last_token_ns"][shown]
    end = max(np.percentile(ends[ends >= 0], 75) if (ends >= 0).any() else begin + 1, begin + 1)
    return (begin - run.begin_ns) / 1e9, (end - run.begin_ns) / 1e9


def gantt(run: Run, window_s: tuple[float, float] | None = None) -> Drawing | None:
    """Draw the requests that arrive in a window or are still present when it begins, up to the first `MOST`."""
    if not run.done.any():
        return None
    begin, end = window_s or window_of(run)
    r = {c: (run.requests[c] - run.begin_ns) / 1e9 for c in TIMES}
    there = (run.requests["state"] == State.FINISHED) & (r["arrival_ns"] <= end)
    there &= (r["arrival_ns"] >= begin) if window_s is None else (r["last_token_ns"] >= begin)
    rows = np.flatnonzero(there)
    rows = rows[np.argsort(r["arrival_ns"][rows], kind="stable")]
    left_out, rows = max(len(rows) - MOST, 0), rows[:MOST]
    if not len(rows):
        return None
    bounds = [r[c][rows] for c in TIMES]
    again = run.requests["num_preemptions"][rows]

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        y = np.arange(len(rows))
        for (colour, _), (start, stop) in zip(PHASES, pairwise(bounds), strict=True):
            spans(axes, y, start, stop, 0.68, INK[colour], alpha=0.9)
        marked = np.flatnonzero(again)
        if len(marked):
            x = np.minimum(bounds[3][marked], end)
            axes.plot(x, marked, "x", color=INK["rose"], markersize=5, markeredgewidth=1.6)
        axes.set_xlim(begin, end)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        step = max(len(rows) // 10, 1)
        name_ticks(axes.yaxis, y[::step].tolist(), [f"{run.requests['row'][i]:,}" for i in rows[::step]])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel(CLOCK)
        axes.set_ylabel("request, by its row in the trace")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.985, bottom=0.12)

    waited, prompt, output = (float(np.mean(stop - start)) for start, stop in pairwise(bounds))
    alt = (
        f"{len(rows)} requests between {begin:.1f} and {end:.1f} s as bars, one below the other in order of "
        f"arrival: on average, they waited {seconds(waited)}, then {seconds(prompt)} for the first token and "
        f"{seconds(output)} for the rest; {int((again > 0).sum())} were preempted."
    )
    caption = (
        "Each bar is a request, numbered by its row in the trace. Point at a bar to see the requests that ran at the "
        "same time."
    )
    if window_s is None:
        caption += " The window contains the longest wait for a first token."
    if again.any():
        caption += " A cross marks requests that were preempted."
    if left_out:
        caption += f" {left_out:,} more requests are not drawn."
    height = 90 + 11 * len(rows)

    def tidy() -> list[tuple[Any, ...]]:
        return [
            ("Requests", phase, "bar", str(run.requests["row"][i]), float(start[y]), y, float(stop[y]), CLOCK)
            for (_, phase), (start, stop) in zip(PHASES, pairwise(bounds), strict=True)
            for y, i in enumerate(rows)
        ]

    return wide("gantt", "Requests", alt, paint, (height, height), caption, legend=PHASES, tidy=tidy)
