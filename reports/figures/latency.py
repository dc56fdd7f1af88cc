"""Latency distributions, with the requested limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.reports.figures.axes import gap_of, time_ticks
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent, time_ms

PANELS = (
    ("ttft", "ttft_ns", "Time to first token", "blue"),
    ("tpot", "tpot_ns", "Time per output token", "teal"),
    ("e2el", "e2el_ns", "End to end", "violet"),
    ("queue_time", "queue_time_ns", "Queue time", "amber"),
)
POINTS = 160


def cdf(run: Run) -> Drawing | None:
    """Draw the cumulative distributions of the four request latencies."""
    every = [(key, title, colour, _ms(run, column)) for key, column, title, colour in PANELS]
    panels = [panel for panel in every if len(panel[-1])]
    if not panels:
        return None
    slo = run.scenario.slo

    def paint(figure: Any, narrow: bool) -> None:
        shape = (len(panels), 1) if narrow else (1, len(panels))
        grid = figure.subplots(*shape, sharey=True, squeeze=False).ravel()
        for axes, (key, title, colour, values) in zip(grid, panels, strict=True):
            _panel(axes, values, INK[colour], slo.get(key), 4)
            share_axis(axes, narrow)
            axes.set_title(title)
        high = figure.get_figheight() * 72
        figure.subplots_adjust(
            left=0.16 if narrow else 0.06, right=0.985, top=1 - 30 / high, bottom=46 / high, wspace=0.14,
            hspace=gap_of(figure, len(panels), 30 + 46, 74) if narrow else 0.0,
        )  # fmt: skip

    stats = run.summary["latency_ms"]
    said = [
        f"{title}: median {time_ms(stats[key]['p50'])}, 99th percentile {time_ms(stats[key]['p99'])}"
        for key, title, _, _ in panels
        if stats[key]
    ]
    caption = "Share of completed requests at or below a latency. Dots mark the median, p90 and p99."
    if slo:
        caption += " Dashed lines show the limits. The number next to a line is the share of requests within the limit."
    alt = "Cumulative distributions of latency. " + "; ".join(said) + "."
    return wide("latency_cdf", "Latency distributions", alt, paint, (296, 186 * len(panels)), caption)


def _ms(run: Run, column: str) -> Any:
    values = run.finished(column)
    return np.sort(values[np.isfinite(values)]) / 1e6


def _panel(axes: Any, values: Any, colour: str, limit: float | None, ticks: int) -> None:
    shares = np.unique(np.concatenate([np.linspace(0, 1, POINTS), 1 - np.geomspace(0.1, 1e-3, 20)]))
    x = np.maximum(np.quantile(values, shares, method="inverted_cdf"), 1e-3)
    axes.fill_between(x, shares, color=colour, alpha=0.1, linewidth=0)
    axes.plot(x, shares, color=colour)
    for q in (50, 90, 99):
        at = max(float(np.percentile(values, q)), 1e-3)
        axes.plot([at], [q / 100], "o", color=colour, markersize=4.5, markeredgecolor=INK["surface"])
    low, high = float(x[0]), float(x[-1])
    if limit is not None:
        low, high = min(low, limit), max(high, limit)
    scale(axes, low, high, ticks)
    if limit is not None:
        mark_limit(axes, limit, float((values <= limit).mean()))


def share_axis(axes: Any, narrow: bool) -> None:
    """Set up the axis of shares of requests; panels on a narrow page are too low for a tick at 90 %."""
    axes.set_ylim(0, 1.02)
    shares = [share for share in (0, 0.5, 0.9, 1) if share != 0.9 or not narrow]
    axes.set_yticks(shares, [f"{100 * share:g} %" if share else "0" for share in shares])
    axes.yaxis.set_gid("share")
    axes.set_xlabel("time")
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("requests")


def scale(axes: Any, low: float, high: float, ticks: int) -> None:
    """Make the axis logarithmic if latencies span more than a decade and a half."""
    from matplotlib.ticker import MaxNLocator

    if high > 30 * low:
        axes.set_xscale("log")
        room = (high / low) ** 0.06
        axes.set_xlim(low / room, high * room)
        time_ticks(axes.xaxis)
    else:
        room = max((high - low) * 0.06, high * 0.01)
        axes.set_xlim(max(low - room, 0), high + room)
        axes.xaxis.set_major_locator(MaxNLocator(ticks))
        time_ticks(axes.xaxis, decades=False)


def mark_limit(axes: Any, limit: float, within: float | None = None) -> None:
    """Mark the limit as a dashed line, with the share of requests within it at a place clear of the curve."""
    axes.axvline(limit, color=INK["rose"], linestyle=(0, (4, 3)), linewidth=1.3)
    if within is None:
        return
    right = axes.transLimits.transform(axes.transScale.transform((limit, 0)))[0] > 0.6
    axes.annotate(
        percent(within), (limit, 0.93 if within < 0.5 else 0.07), xytext=(-5 if right else 5, 0),
        textcoords="offset points", ha="right" if right else "left", va="center", color=INK["rose"],
        weight="bold", bbox={"facecolor": INK["surface"], "alpha": 0.8, "pad": 1.5, "linewidth": 0},
    )  # fmt: skip
