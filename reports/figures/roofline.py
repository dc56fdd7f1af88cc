"""Steps under the roofline of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from servesim.cost.formula import COMPUTE_DTYPE, format_on
from servesim.hardware import Gpu
from servesim.reports.figures.axes import log_ticks
from servesim.reports.ink import INK
from servesim.reports.svg import Drawing, half, wide
from servesim.reports.words import percent

KIND_COLOURS = {"prefill": "violet", "mixed": "amber", "decode": "blue"}

Point = tuple[str, float, float]
"""Tuple of (kind of step, FLOP per byte, FLOP/s per GPU)."""


def roofline(
    gpu: Gpu, dtype: str, points: Sequence[Point], labels: Sequence[str] = (), across: bool = False
) -> Drawing | None:
    """Draw steps by arithmetic intensity and FLOP/s. `labels` has one label per point, or none. If `across`, the figure
    spans the page width."""
    peak = gpu.flops[COMPUTE_DTYPE[format_on(gpu, dtype)]]
    if not points:
        return None
    ridge = peak / gpu.bandwidth
    x, y = (np.array([p[i] for p in points]) for i in (1, 2))

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        low, high = min(float(x.min()) / 2, ridge / 10), max(float(x.max()) * 2, ridge * 4)
        roof = np.array([low, ridge, high])
        axes.plot(roof, np.minimum(roof * gpu.bandwidth, peak) / 1e12, color=INK["muted"], linewidth=1.5)
        for kind, colour in KIND_COLOURS.items():
            mine = np.array([p[0] == kind for p in points])
            if mine.any():
                size, alpha = (7, 1.0) if labels else (4, 0.5)
                axes.plot(
                    x[mine], y[mine] / 1e12, "o", color=INK[colour], markersize=size, alpha=alpha, markeredgewidth=0
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(max(float(y.min()) / 1e12 / 2, peak / 1e16), peak / 1e12 * 2.2)
        _name(axes, points, labels, low, high)
        axes.annotate(
            f"{peak / 1e12:,.0f} TFLOP/s", (high, peak / 1e12), xytext=(-2, 5), textcoords="offset points", ha="right",
            color=INK["muted"],
        )  # fmt: skip
        axes.annotate(
            f"{gpu.bandwidth / 1e12:.2g} TB/s", (ridge / 25, peak / 25e12), xytext=(-6, 4),
            textcoords="offset points", ha="right", color=INK["muted"],
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            log_ticks(axis, lambda value: f"{value:,g}")
        axes.grid(axis="x", visible=True)
        axes.set_xlabel("FLOP per byte")
        axes.set_ylabel("TFLOP/s of a GPU")
        left = 0.095 if not across else 0.12 if narrow else 0.055
        figure.subplots_adjust(left=left, right=0.98, top=0.97, bottom=0.15)

    bound = float((x < ridge).mean())
    reached = y / np.minimum(x * gpu.bandwidth, peak)
    middle = percent(float(np.median(reached)))
    what = f"{len(x)} {'steps' if labels else 'sampled steps'}"
    alt = (
        f"{what} by arithmetic intensity and FLOP/s under the roof of one {gpu.name}: {percent(bound)} lie left "
        f"of the ridge at {ridge:,.0f} FLOP per byte, where they are memory-bound; the median step reaches "
        f"{middle} of the roof."
    )
    caption = f"The ridge is at {ridge:,.0f} FLOP per byte. The median step reaches {middle} of its roof."
    kinds = {p[0] for p in points}
    legend = tuple((colour, f"{kind} steps") for kind, colour in KIND_COLOURS.items() if kind in kinds)
    if across:
        return wide("roofline", "Roofline", alt, paint, (420, 330), caption, legend=legend)
    return half("roofline", "Roofline", alt, paint, 330, caption, legend=legend)


def _name(axes: Any, points: Sequence[Point], labels: Sequence[str], low: float, high: float) -> None:
    """Place labels below and right of their points, or left of points near the right edge."""
    for label, (_, x, y) in zip(labels, points, strict=False):
        edge = np.log(x / low) > 0.75 * np.log(high / low)
        axes.annotate(
            label, (x, y / 1e12), xytext=(-9 if edge else 7, -4 if edge else -13), textcoords="offset points",
            ha="right" if edge else "left",
        )  # fmt: skip
