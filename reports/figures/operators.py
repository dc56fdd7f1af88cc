"""Where the GPU time goes: by operator and kind of step, and under the roofline."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.cost.formula import COMPUTE_DTYPE
from servesim.hardware import Gpu
from servesim.reports.priced import FAMILIES, Priced
from servesim.reports.run import Run
from servesim.reports.svg import INK, Drawing, half, wide
from servesim.reports.words import percent, time_ms

KIND_COLOURS = {"prefill": "violet", "mixed": "amber", "decode": "blue"}


def operators(run: Run, priced: Priced) -> Drawing:
    """Shares of the time of each kind of step by family of operators."""
    by_kind = {kind: priced.families(kind) for kind in priced.kinds}
    everything = {key: sum(parts[key] for parts in by_kind.values()) for key, *_ in FAMILIES}
    bars = [("all steps", everything), *((f"{kind} steps", by_kind[kind]) for kind in by_kind)]
    if len(by_kind) == 1:
        bars = bars[1:]
    shown = [(key, colour, words) for key, colour, words, _ in FAMILIES if everything[key]]

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for y, (label, parts) in enumerate(bars):
            total, left = sum(parts.values()), 0.0
            for key, colour, _ in shown:
                share = parts[key] / total
                axes.barh(y, share, left=left, height=0.5, color=INK[colour], linewidth=0)
                if share > (0.11 if narrow else 0.045):
                    axes.text(
                        left + share / 2, y, f"{100 * share:.0f} %", ha="center", va="center", color=INK["surface"],
                        fontsize=10.5, weight="bold",
                    )  # fmt: skip
                left += share
            axes.text(0, y - 0.42, label, ha="left", va="center", fontsize=11.5, weight="bold")
            axes.text(1, y - 0.42, time_ms(total / 1e6), ha="right", va="center", fontsize=10.5, color=INK["muted"])
        axes.set_xlim(0, 1)
        axes.set_ylim(len(bars) - 0.6, -0.62)
        axes.set_axis_off()
        figure.subplots_adjust(left=0.005, right=0.995, top=0.99, bottom=0.01)

    total = sum(everything.values())
    longest = sorted(shown, key=lambda s: -everything[s[0]])
    alt = "Shares of the time steps take: " + "; ".join(
        f"{words} {percent(everything[key] / total)}" for key, _, words in longest
    )
    caption = (
        f"A sample of the recorded steps, priced again: the operators account for {percent(priced.recorded)} of the "
        "GPU time recorded for them."
    )
    legend = tuple((colour, words) for _, colour, words in shown)
    height = 64 * len(bars) + 6
    return wide("operators", "Step time by operator", alt + ".", paint, (height, height), caption, legend=legend)


def roofline(run: Run, priced: Priced) -> Drawing | None:
    """Sampled steps under the GPU's roofline."""
    gpu = Gpu.load(run.scenario.gpu)
    peak = gpu.flops[COMPUTE_DTYPE[run.scenario.dtype]]
    if not priced.points:
        return None
    ridge = peak / gpu.bandwidth
    x, y = (np.array([p[i] for p in priced.points]) for i in (1, 2))

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        low, high = min(float(x.min()) / 2, ridge / 10), max(float(x.max()) * 2, ridge * 4)
        roof = np.array([low, ridge, high])
        axes.plot(roof, np.minimum(roof * gpu.bandwidth, peak) / 1e12, color=INK["muted"], linewidth=1.5)
        for kind, colour in KIND_COLOURS.items():
            mine = np.array([p[0] == kind for p in priced.points])
            if mine.any():
                axes.plot(x[mine], y[mine] / 1e12, "o", color=INK[colour], markersize=4, alpha=0.5, markeredgewidth=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(max(float(y.min()) / 1e12 / 2, peak / 1e16), peak / 1e12 * 2.2)
        axes.annotate(
            f"{peak / 1e12:,.0f} TFLOP/s", (high, peak / 1e12), xytext=(-2, 5), textcoords="offset points", ha="right",
            fontsize=10.5, color=INK["muted"],
        )  # fmt: skip
        axes.annotate(
            f"{gpu.bandwidth / 1e12:.2g} TB/s", (ridge / 25, peak / 25e12), xytext=(-6, 4),
            textcoords="offset points", ha="right", fontsize=10.5, color=INK["muted"],
        )  # fmt: skip
        _plain_decades(axes.xaxis)
        _plain_decades(axes.yaxis)
        axes.grid(axis="x", visible=True)
        axes.set_xlabel("FLOP per byte")
        axes.set_title("TFLOP/s of a GPU", fontsize=11, fontweight="normal", color=INK["muted"])
        figure.subplots_adjust(left=0.095, right=0.98, top=0.91, bottom=0.15)

    bound = float((x < ridge).mean())
    reached = y / np.minimum(x * gpu.bandwidth, peak)
    middle = percent(float(np.median(reached)))
    alt = (
        f"{len(x)} sampled steps by arithmetic intensity and FLOP/s under the roof of one {gpu.name}: {percent(bound)} "
        f"lie left of the ridge at {ridge:,.0f} FLOP per byte, where memory bounds them; the median step reaches "
        f"{middle} of the roof."
    )
    caption = f"The ridge is at {ridge:,.0f} FLOP per byte. The median step reaches {middle} of its roof."
    kinds = {p[0] for p in priced.points}
    legend = tuple((colour, f"{kind} steps") for kind, colour in KIND_COLOURS.items() if kind in kinds)
    return half("roofline", "Roofline", alt, paint, 330, caption, legend=legend)


def _plain_decades(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(10, numticks=7))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
