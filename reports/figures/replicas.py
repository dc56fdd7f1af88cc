"""Replicas of a cluster side by side: the load of each over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.reports.figures.axes import clock, percents, thousands
from servesim.reports.ink import INK, SERIES
from servesim.reports.run import Column, Run, Series
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent


def by_replica(run: Run) -> Drawing | None:
    """Draw the sequences per step and KV memory of each replica; if there are more replicas than colors, draw the
    busiest ones."""
    steps = run.steps
    found = [int(replica) for replica in np.unique(steps["replica"])]
    if len(found) < 2:
        return None
    spent = {replica: int(steps["gpu_ns"][steps["replica"] == replica].sum()) for replica in found}
    shown = sorted(sorted(found, key=lambda replica: -spent[replica])[: len(SERIES)])
    unit, name = clock(float(run.clock_s[-1]))
    capacity = run.summary["kv"]["capacity_tokens"] * run.scenario.dp
    batch = (steps["decode_count"] + steps["prefill_pieces"]) * steps["elapsed_ns"]
    held = (steps["kv_used_ns"] + steps["kv_internal_ns"]) / capacity
    panels = [
        ("Sequences in a step", {r: _of(run, batch, r) for r in shown}, thousands),
        ("KV memory", {r: _of(run, held, r) for r in shown}, percents),
    ]

    def paint(figure: Any, narrow: bool) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True)
        for axes, (title, values, ticks) in zip(grid, panels, strict=True):
            for i, replica in enumerate(shown):
                axes.plot(run.clock_s / unit, values[replica], color=INK[SERIES[i]], linewidth=1.4)
            axes.set_title(title, pad=5)
            axes.set_xlim(0, (run.end_ns - run.begin_ns) / 1e9 / unit)
            high = max(float(series.max()) for series in values.values())
            axes.set_ylim(0, max(high * 1.12, 0.01 if title == "KV memory" else 1))
            ticks(axes.yaxis)
            axes.set_ylabel("sequences" if ticks is thousands else title)
        grid[-1].set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.93, bottom=0.15, hspace=0.42)

    alt = "By replica over time: " + "; ".join(
        f"replica {r}, at most {panels[0][1][r].max():,.0f} sequences in a step and "
        f"{percent(float(panels[1][1][r].max()))} of its KV memory"
        for r in shown
    )
    caption = "Each value is the mean over 1/300 of the run."
    if len(found) > len(shown):
        caption += f" Only the {len(shown)} busiest of {len(found)} replicas are shown."
    legend = tuple((SERIES[i], f"replica {r}") for i, r in enumerate(shown))
    return wide("replicas", "Replicas over time", alt + ".", paint, (300, 320), caption, legend=legend)


def _of(run: Run, integrals: Column | Series, replica: int) -> Series:
    """Return the mean over each bin for one replica."""
    return run.mean_of(np.where(run.steps["replica"] == replica, integrals, 0))
