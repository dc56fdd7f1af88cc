"""Latency against load, with the knee of each curve; share of requests within the limits, by rate; prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from servesim.experiments.knee import knee
from servesim.experiments.metrics import metric_label
from servesim.experiments.ranking import PARETO
from servesim.reports.experiment import amount
from servesim.reports.figures.axes import QUANTITIES, log_ticks, percents, time_ticks
from servesim.reports.ink import INK
from servesim.reports.svg import Drawing, half, wide
from servesim.reports.variants import Legend


@dataclass(frozen=True)
class Curve:
    """Curve of one variant over ascending rates."""

    label: str
    colour: str
    rates: Sequence[float]
    values: Mapping[str, Sequence[float | None]]
    """Values by metric."""
    stable: Sequence[bool]
    last_stable: float | None = None
    """Highest rate whose runs are long enough to show that it is stable."""


def against_load(
    curves: Sequence[Curve], metrics: Sequence[Mapping[str, Any]], limits: Mapping[str, float] | None = None,
    left: Legend = (),
) -> Drawing:  # fmt: skip
    """Draw a panel for each metric and a line for each variant. Unstable points are hollow, knees are ringed, and
    `limits` (ms by latency) are drawn as dashed lines unless they are far above the values. `left` names variants that
    are not drawn."""
    marked = {m["name"]: ms for m in metrics if (ms := _limit(curves, m, limits or {})) is not None}

    def paint(figure: Any, narrow: bool) -> None:
        shape = (len(metrics), 1) if narrow else (1, len(metrics))
        grid = figure.subplots(*shape, squeeze=False).ravel()
        for axes, metric in zip(grid, metrics, strict=True):
            for curve in curves:
                _line(axes, curve, metric)
            limit = marked.get(metric["name"])
            _axes(axes, metric, [*_shown(curves, metric), *([] if limit is None else [limit])])
            if limit is not None:
                axes.axhline(limit, color=INK["rose"], linestyle=(0, (4, 3)), linewidth=1.3)
            axes.set_title(metric_label(metric["name"]))
            axes.set_xlabel("requests/s")
            axes.set_ylabel(QUANTITIES.get(metric["unit"], metric["unit"]))
        high = figure.get_figheight() * 72
        figure.subplots_adjust(
            left=0.17 if narrow else 0.07, right=0.985, top=1 - 32 / high, bottom=44 / high, wspace=0.28, hspace=0.42
        )

    knees = [(c.label, m, k) for c in curves for m in metrics if m["latency"] and (k := _knee(c, m)) is not None]
    alt = "By arrival rate: " + "; ".join(
        f"{c.label}, {metric_label(m['name'])} from {_at(c, m, 0)} at {c.rates[0]:g} to {_at(c, m, -1)} at "
        f"{c.rates[-1]:g} requests/s"
        for c in curves
        for m in metrics
    )
    if knees:
        alt += ". Knees: " + "; ".join(f"{label}, {metric_label(m['name'])} at {k:g}" for label, m, k in knees)
    caption = "A marker is hollow if the queue grows without bound in at least half of the runs."
    if knees:
        caption += (
            " A ring marks the knee: the stable point farthest below the line from a curve's first point to its last."
        )
    if marked:
        caption += " Dashed: the limit."
    legend = tuple((c.colour, c.label) for c in curves) + left
    return wide(
        "latency_load", "Latency against load", alt + ".", paint, (320, 300 * len(metrics)), caption, legend=legend
    )


def _shown(curves: Sequence[Curve], metric: Mapping[str, Any]) -> list[float]:
    return [v for c in curves for v in c.values[metric["name"]] if v is not None]


def _limit(curves: Sequence[Curve], metric: Mapping[str, Any], limits: Mapping[str, float]) -> float | None:
    """Return the limit of a latency in ms, or None if it is so far above all values that it would flatten them."""
    name, values = metric["name"].rpartition("_")[0], _shown(curves, metric)
    return limits[name] if name in limits and values and limits[name] <= 3 * max(values) else None


def _knee(curve: Curve, metric: Mapping[str, Any]) -> float | None:
    return knee(curve.rates, curve.values[metric["name"]], curve.stable) if metric["latency"] else None


def _at(curve: Curve, metric: Mapping[str, Any], i: int) -> str:
    return str(amount(curve.values[metric["name"]][i], metric["unit"]))


def _line(axes: Any, curve: Curve, metric: Mapping[str, Any]) -> None:
    values = [np.nan if v is None else max(v, 1e-3) for v in curve.values[metric["name"]]]
    colour = INK[curve.colour]
    axes.plot(curve.rates, values, color=colour, linewidth=1.6)
    for rate, value, ok in zip(curve.rates, values, curve.stable, strict=True):
        axes.plot([rate], [value], "o", color=colour if ok else INK["surface"], markeredgecolor=colour, markersize=5)
    bend = _knee(curve, metric)
    if bend is not None:
        at = values[list(curve.rates).index(bend)]
        axes.plot([bend], [at], "o", markersize=13, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.6)


def _axes(axes: Any, metric: Mapping[str, Any], values: Sequence[float]) -> None:
    if metric["unit"] == "ms":
        if values and max(values) > 12 * max(min(values), 1e-3):
            axes.set_yscale("log")
            axes.set_ylim(max(min(values), 1e-3) / 1.6, max(values) * 1.6)
            time_ticks(axes.yaxis)
        else:
            axes.set_ylim(0, max(values, default=1.0) * 1.12)
            time_ticks(axes.yaxis, decades=False)
    elif metric["unit"] == "share":
        axes.set_ylim(0, 1.04)
        percents(axes.yaxis)
    else:
        axes.set_ylim(0, max(values, default=1.0) * 1.12)
    axes.set_xlim(left=0)


def attainment(
    points: Mapping[str, Sequence[tuple[float, float]]], palette: Mapping[str, str], target: float, unit: str,
    more: str = "", left: Legend = (),
) -> Drawing:  # fmt: skip
    """Draw the share of requests within the limits at every rate (or size) that was tried; sizes are on a base-2
    logarithmic axis if they extend beyond 8. The axis of shares begins where `LOST` times the lost requests that are
    allowed are lost, but no higher than `HIGHEST`. `more` is text added to the caption, and `left` names
    deployments that are not drawn."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    sizes = sorted({x for pairs in points.values() for x, _ in pairs})
    doubled = unit == "replicas" and sizes[-1] > 8
    low = max(min(1 - LOST * (1 - target), HIGHEST), 0.0)
    room = 0.04 * (1 - low)
    inside = [x for pairs in points.values() for x, share in pairs if share >= low]

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for label, pairs in points.items():
            x, y = zip(*sorted(pairs), strict=True)
            axes.plot(x, y, "o", color=INK[palette[label]], markersize=4.5, alpha=0.55, markeredgewidth=0)
            rates = sorted(set(x))
            means = [float(np.mean([b for a, b in pairs if a == rate])) for rate in rates]
            axes.plot(rates, means, color=INK[palette[label]], linewidth=1.6)
        axes.axhline(target, color=INK["rose"], linestyle=(0, (4, 3)), linewidth=1.3)
        axes.set_ylim(low, 1 + room)
        percents(axes.yaxis)
        if doubled:
            axes.set_xscale("log", base=2)
            axes.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
            if sizes[-1] < 4 * sizes[0]:
                axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
            axes.xaxis.set_gid("count")
        else:
            axes.set_xlim(0, 1.1 * max(inside or sizes))
        if unit == "replicas" and not doubled:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel(unit)
        axes.set_ylabel("requests within the limits")
        figure.subplots_adjust(left=0.14, right=0.98, top=0.97, bottom=0.15)

    alt = f"Share of requests within every limit by {unit}: " + "; ".join(
        f"{label}, {len(pairs)} runs from {min(pairs)[0]:g} to {max(pairs)[0]:g}" for label, pairs in points.items()
    )
    below = any(share < low for pairs in points.values() for _, share in pairs)
    cut = f" Shares below {100 * low:g} % are outside the frame." if below else ""
    caption = (
        f"Each dot is a run. Lines connect the means. The dashed line is the required share, {100 * target:g} "
        f"%.{cut}{more}"
    )
    legend = (tuple((palette[label], label) for label in points) if any(points) else ()) + left
    return half("attainment", "Within every limit", alt + ".", paint, 320, caption, legend=legend)


UNNAMED = ("slate", "muted")
"""Colors of dots that the legend does not name."""
_PRICE = "price per million tokens"
HIGHEST = 0.99
"""Highest start of the axis of shares."""
LOST = 5
"""Largest share of lost requests on the axis of shares, as a multiple of the share that may be lost."""


class Dot(NamedTuple):
    """Variant in the figure of a Pareto front."""

    label: str
    colour: str
    price: float
    """Price in $ per million tokens."""
    ms: float
    """Latency (p99) in ms."""
    flow: float
    """Throughput in output tokens/s."""
    front: bool
    bars: tuple[float, float] | None = None
    """Ends of the error bar around `ms`, calculated from the ratio to the variant that is hardest to distinguish from
    this one."""
    doubtful: bool = False
    """Whether the variant may be off the front, or may belong to it although it is not listed."""


def pareto(rows: Sequence[Dot], latency: str = PARETO[1], left: Legend = ()) -> Drawing:
    """Draw price against a latency; the area of a dot represents throughput, and a bar represents the range that the
    model's error allows. `left` names variants that are not drawn."""
    from matplotlib.ticker import MaxNLocator

    words = metric_label(latency)
    lows, highs = min(r.price for r in rows), max(r.price for r in rows)
    room = (highs - lows) * 0.22 or highs * 0.2

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        most = max(r.flow for r in rows) or 1.0
        for r in rows:
            size, edge = 5 + 15 * (max(r.flow, 0.0) / most) ** 0.5, INK["ink"] if r.front else INK[r.colour]
            if r.bars is not None:
                axes.plot([r.price, r.price], list(r.bars), color=INK[r.colour], linewidth=1.3, alpha=0.7)
            fill, alpha = INK["surface"] if r.doubtful else INK[r.colour], 0.85 if r.front or r.doubtful else 0.3
            axes.plot([r.price], [r.ms], "o", color=fill, markersize=size, alpha=alpha, mec=edge)
        if highs > 12 * lows > 0:
            axes.set_xscale("log")
            axes.set_xlim(lows / 1.8, highs * 1.8)
        else:
            axes.set_xlim(max(lows - room, 0), highs + room)
        _axes_time(axes, [ms for r in rows for ms in (r.ms, *(r.bars or ()))])
        if axes.get_xscale() == "log":
            log_ticks(axes.xaxis, lambda price: f"${price:.3g}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(lambda price, _: f"${price:.3g}")
        axes.set_xlabel(_PRICE)
        axes.set_ylabel(words)
        figure.subplots_adjust(left=0.14, right=0.98, top=0.97, bottom=0.15)

    doubt = " (given the model's error, it may not be)"
    alt = f"Price, {words} and output throughput. On the Pareto front: " + "; ".join(
        f"{r.label} at {amount(r.price, '$')} per million tokens, {amount(r.ms, 'ms')}, {amount(r.flow, 'tokens/s')}"
        f"{doubt if r.doubtful else ''}"
        for r in rows
        if r.front
    )
    caption = (
        "Larger dots have higher throughput. A dot is outlined if no other is at least as good in all three "
        "and better in one."
    )
    if any(r.bars for r in rows):
        caption += (
            " Bars: the range of p99 that 80 % of the ratios of measured pairs allow, relative to the variant "
            "from which it is hardest to distinguish (propagated, not validated); hollow if the bar leaves open "
            "which variants are on the front."
        )

    legend = tuple((r.colour, r.label) for r in rows if r.front and r.colour not in UNNAMED)
    if others := sum(r.front for r in rows) - len(legend):
        legend += (("slate", f"{others} more on the front"),)

    def tidy() -> list[tuple[Any, ...]]:
        front = {True: "on the front", False: "behind it"}
        found = [(words, front[r.front], "point", r.label, r.price, r.ms, None, _PRICE) for r in rows]
        return found + [
            ("output tokens/s", front[r.front], "point", r.label, r.price, r.flow, None, _PRICE) for r in rows
        ]

    return half("pareto", "Price, latency, throughput", alt + ".", paint, 320, caption, legend=legend + left, tidy=tidy)


def _axes_time(axes: Any, values: Sequence[float]) -> None:
    high = max(values)
    if high > 12 * min(values):
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.6, high * 2)
        time_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, high * 1.25)
        time_ticks(axes.yaxis, decades=False)
