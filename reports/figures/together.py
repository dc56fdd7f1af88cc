"""Overlaid load of several runs: waiting requests, step sizes, and KV memory use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.reports.figures.axes import clock, percents, thousands
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent


def together(runs: Mapping[str, Run], palette: Mapping[str, str], narrow: bool | None = None) -> Drawing | None:
    """Draw waiting requests, sequences per step and KV memory over time, one line per run. `narrow` is as in
    servesim.reports.svg.wide."""
    shown = {label: run for label, run in runs.items() if len(run.steps["k"])}
    if not shown:
        return None
    unit, name = clock(max(float(run.clock_s[-1]) for run in shown.values()))
    memory = {label: sum(run.memory.values(), 0 * run.waiting) for label, run in shown.items()}
    panels = (
        ("Waiting requests", {label: run.waiting for label, run in shown.items()}, thousands, "requests"),
        ("Sequences in a step", {label: run.batch for label, run in shown.items()}, thousands, "sequences"),
        ("KV memory", memory, percents, "KV memory"),
    )

    def paint(figure: Any, phone: bool) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True)
        for axes, (title, values, ticks, what) in zip(grid, panels, strict=True):
            for label, series in values.items():
                axes.plot(shown[label].clock_s / unit, series, color=INK[palette[label]], linewidth=1.5)
            axes.set_title(title, pad=5)
            axes.set_xlim(0, max((run.end_ns - run.begin_ns) / 1e9 / unit for run in shown.values()))
            high = max(float(series.max()) for series in values.values())
            axes.set_ylim(0, max(high * 1.12, 0.01 if title == "KV memory" else 1))
            ticks(axes.yaxis)
            axes.set_ylabel(what)
        grid[-1].set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if phone else 0.05, right=0.985, top=0.945, bottom=0.11, hspace=0.45)

    alt = "Over time: " + "; ".join(
        f"{label}, at most {run.waiting.max():,.0f} requests waiting, {run.batch.max():,.0f} sequences in a step, "
        f"{percent(float(memory[label].max()))} of the KV memory allocated"
        for label, run in shown.items()
    )
    caption = "Each value is the mean over 1/300 of its run."
    legend = tuple((palette[label], label) for label in shown)
    return wide("timeline", "The load over time", alt + ".", paint, (380, 420), caption, narrow, legend=legend)
