"""Waiting requests, by class of service and by tenant."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.reports.figures.axes import clock, thousands
from servesim.reports.ink import INK, SERIES
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import shortened
from servesim.run.shown import UNNAMED

MOST = len(SERIES) - 1
"""Maximum number of labels with their own color; all others share the last one."""


def queue_by(run: Run, kind: str) -> Drawing | None:
    """Draw the waiting requests over time, stacked by the trace's label `kind` (class or tenant), with the label that
    has the longest total wait at the bottom. Return None with fewer than two labels, or if no request waited."""
    labels = run.labels.get(kind)
    if labels is None or not run.waiting.any():
        return None
    known, of = np.unique(labels, return_inverse=True)
    if len(known) < 2:
        return None
    waited = np.bincount(of, weights=run.waited_until - run.requests["arrival_ns"])
    ranked = np.argsort(-waited, kind="stable")
    parts = [(shortened(str(known[i])) or UNNAMED, run.waiting_of(of == i)) for i in ranked[:MOST]]
    if len(ranked) > MOST:
        parts.append((f"{len(ranked) - MOST} others", run.waiting_of(np.isin(of, ranked[MOST:]))))
    unit, name = clock(float(run.clock_s[-1]))

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.stackplot(
            run.clock_s / unit, *[values for _, values in parts], colors=[INK[colour] for colour, _ in legend],
            alpha=0.8, linewidth=0,
        )  # fmt: skip
        axes.set_xlim(0, (run.end_ns - run.begin_ns) / 1e9 / unit)
        axes.set_ylim(0, max(float(run.waiting.max()) * 1.12, 1))
        thousands(axes.yaxis)
        axes.set_ylabel("requests")
        axes.set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.96, bottom=0.2 if narrow else 0.19)

    legend = tuple((SERIES[i], label) for i, (label, _) in enumerate(parts))
    most = ", ".join(f"{values.max():,.0f} of {label}" for label, values in parts)
    return wide(
        f"queue_{kind}",
        f"Waiting requests by {kind}",
        f"Requests waiting over time by {kind}, peaking at {most}; each value is the mean over 1/300 of the run.",
        paint,
        (250, 250),
        "Requests not scheduled yet; each value is the mean over 1/300 of the run.",
        legend=legend,
    )
