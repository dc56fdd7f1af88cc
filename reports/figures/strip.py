"""Overview of all combinations of a sweep: one row each, with a dot for every rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.metrics import metric_label
from servesim.reports.experiment import amount
from servesim.reports.figures.axes import (
    BESIDE,
    QUANTITIES,
    gap_of,
    name_above,
    name_ticks,
    percents,
    pitch_of,
    time_ticks,
)
from servesim.reports.ink import INK, SERIES
from servesim.reports.svg import Drawing, wide
from servesim.reports.variants import Legend

ROWS_AT_MOST = 30

Row = Mapping[str, Any]
"""Mapping with the keys `label` and `points`, a list of (series, stable, values by metric)."""


def strip(
    rows: Sequence[Row], series: Sequence[str], metrics: Sequence[Mapping[str, Any]], left: Legend = ()
) -> Drawing:
    """Draw a panel for each metric and a line of dots for each combination; `series` are the rates, or a single one.
    `left` names combinations that are not drawn."""
    shown = rows[:ROWS_AT_MOST]
    names = [row["label"] for row in shown]
    above, beside = pitch_of(names, 36), pitch_of(names, 24, BESIDE, 3)

    def paint(figure: Any, narrow: bool) -> None:
        high = figure.get_figheight() * 72
        shape = (len(metrics), 1) if narrow else (1, len(metrics))
        grid = figure.subplots(*shape, squeeze=False, sharey=True).ravel()
        for axes, metric in zip(grid, metrics, strict=True):
            _panel(axes, shown, series, metric)
            axes.set_title(metric_label(metric["name"]))
            axes.set_xlabel(QUANTITIES.get(metric["unit"], metric["unit"]))
            axes.set_ylim(len(shown) - 0.4, -0.6)
            name_ticks(axes.yaxis, range(len(shown)), ["" for _ in names] if narrow else names)
            axes.tick_params(axis="y", labelcolor=INK["ink"])
            if narrow:
                for y, name in enumerate(names):
                    name_above(axes, y, name, above)
        gap = gap_of(figure, len(metrics), 30 + 46, 72) if narrow else 0.0
        figure.subplots_adjust(
            left=0.02 if narrow else 0.2, right=0.97, top=1 - 30 / high, bottom=46 / high, wspace=0.1, hspace=gap
        )

    said = [
        f"{row['label']}, {name}: {', '.join(amount(values.get(m['name']), m['unit']) for m in metrics)}"
        for row in shown
        for name, _, values in row["points"]
    ]
    alt = f"{', '.join(metric_label(m['name']) for m in metrics)} of every combination. {'; '.join(said)}."
    caption = "A marker is hollow if the queue grows without bound in at least half of the runs."
    if len(rows) > len(shown):
        caption += f" Only the first {len(shown)} of {len(rows)} are shown."
    legend = tuple((SERIES[i % len(SERIES)], name) for i, name in enumerate(series)) if len(series) > 1 else ()
    legend += left
    heights = (beside * len(shown) + 82, (above * len(shown) + 96) * len(metrics))
    return wide("combinations", "Every combination at a glance", alt, paint, heights, caption, legend=legend)


def _panel(axes: Any, rows: Sequence[Row], series: Sequence[str], metric: Mapping[str, Any]) -> None:
    found = []
    for y, row in enumerate(rows):
        for name, stable, values in row["points"]:
            value = values.get(metric["name"])
            if value is None:
                continue
            found.append(max(value, 1e-3) if metric["unit"] == "ms" else value)
            colour = INK[SERIES[list(series).index(name) % len(SERIES)]]
            fill = colour if stable else INK["surface"]
            axes.plot([found[-1]], [y], "o", color=fill, markeredgecolor=colour, markeredgewidth=1.4, markersize=7)
    axes.grid(axis="x", visible=True)
    if metric["unit"] == "ms" and found and max(found) > 12 * min(found):
        axes.set_xscale("log")
        axes.set_xlim(min(found) / 1.7, max(found) * 1.7)
        time_ticks(axes.xaxis)
    else:
        axes.set_xlim(0, max(found, default=1.0) * 1.12 or 1.0)
        if metric["unit"] == "ms":
            time_ticks(axes.xaxis, decades=False)
        elif metric["unit"] == "share":
            percents(axes.xaxis)
