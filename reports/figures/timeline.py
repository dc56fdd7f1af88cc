"""Time series: queue, batch and preemptions over the run, and the map of KV memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.reports.figures.axes import clock, percents, thousands
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent, seconds


def timeline(run: Run) -> Drawing | None:
    """Draw waiting requests, sequences per step and preemptions."""
    if not len(run.steps["k"]):
        return None
    unit, name = clock(float(run.clock_s[-1]))
    x = run.clock_s / unit
    series = [
        ("Waiting requests", run.waiting, "amber", "requests"),
        ("Sequences in a step", run.batch, "blue", "sequences"),
    ]
    if run.preempted.any():
        series.append(("Preemptions", run.preempted, "rose", "times"))

    def paint(figure: Any, narrow: bool) -> None:
        heights = {"height_ratios": [3, 3, 1.5][: len(series)]}
        grid = figure.subplots(len(series), 1, sharex=True, gridspec_kw=heights)
        for axes, (title, values, colour, unit_name) in zip(grid, series, strict=True):
            if title == "Preemptions":
                axes.bar(x, values, width=x[1] - x[0], color=INK[colour], linewidth=0)
            else:
                axes.fill_between(x, values, color=INK[colour], alpha=0.16, linewidth=0)
                axes.plot(x, values, color=INK[colour], linewidth=1.5)
            axes.set_title(title, pad=5)
            axes.set_xlim(0, (run.end_ns - run.begin_ns) / 1e9 / unit)
            axes.set_ylim(0, max(float(values.max()) * 1.12, 1))
            thousands(axes.yaxis)
            axes.set_ylabel(unit_name)
        arrivals = (int(run.requests["arrival_ns"].max()) - run.begin_ns) / 1e9 / unit
        for axes in grid:
            axes.axvline(arrivals, color=INK["muted"], linewidth=1, linestyle=(0, (1, 2.5)))
        grid[-1].set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(
            left=0.135 if narrow else 0.05, right=0.985, top=0.955, bottom=0.085 if narrow else 0.09, hspace=0.42
        )

    preemptions = int(run.preempted.sum())
    span = seconds((run.end_ns - run.begin_ns) / 1e9)
    alt = (
        f"Over {span}: at most {run.waiting.max():,.0f} requests waiting and {run.batch.max():,.0f} sequences in "
        f"a step, each a mean over 1/300 of the run; {preemptions:,} preemptions."
    )
    caption = "Each value is the mean over 1/300 of the run. The dotted line marks the last arrival."
    height = 150 + 130 * (len(series) - 1)
    return wide("timeline", "The run over time", alt, paint, (height, height), caption)


MEMORY = (
    ("used", "blue", "used"),
    ("internal", "amber", "reserved or wasted inside blocks"),
    ("external", "rose", "wasted between blocks"),
    ("free", "slate", "free"),
)


def memory_map(run: Run) -> Drawing | None:
    """Draw used, reserved and wasted KV memory, stacked over time."""
    if not len(run.steps["k"]):
        return None
    unit, name = clock(float(run.clock_s[-1]))
    parts = [(run.memory[key], colour) for key, colour, _ in MEMORY[:3]]
    top = float(sum((values for values, _ in parts), np.zeros_like(run.waiting)).max())
    peaks = run.memory_peaks
    top = top if peaks is None else max(top, float(peaks.max()))
    limit = 1.0 if top > 0.4 else max(top * 1.25, 1e-3)

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        axes.stackplot(
            run.clock_s / unit, *[values for values, _ in parts], colors=[INK[c] for _, c in parts], alpha=0.75,
            linewidth=0,
        )  # fmt: skip
        if peaks is not None:
            axes.plot(run.clock_s / unit, peaks, color=INK["ink"], linewidth=1)
        if limit == 1.0:
            axes.axhline(1.0, color=INK["muted"], linewidth=1)
        axes.set_xlim(0, (run.end_ns - run.begin_ns) / 1e9 / unit)
        axes.set_ylim(0, limit * 1.02)
        percents(axes.yaxis)
        axes.set_ylabel("KV memory")
        axes.set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.96, bottom=0.2 if narrow else 0.19)

    kv = run.summary["kv"]
    alt = (
        f"KV memory over time as a share of {kv['capacity_tokens']:,} tokens per replica: on average, "
        f"{percent(kv['used_share'])} used, {percent(kv['internal_share'])} reserved or wasted inside blocks, "
        f"{percent(kv['external_share'])} wasted between them, {percent(kv['free_share'])} free."
    )
    caption = "Shares of the KV memory of all replicas: used by requests, reserved but not used, and lost."
    if peaks is not None:
        caption += f" The line shows the peak allocation{' on any replica' if run.scenario.replicas > 1 else ''}."
    if limit < 1.0:
        caption += f" The axis ends at {percent(limit)}."
    legend = tuple((colour, text) for _, colour, text in MEMORY[:3])
    return wide("kv_memory", "KV memory map", alt, paint, (250, 250), caption, legend=legend)
