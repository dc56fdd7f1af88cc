"""GPU time by operator and kind of step."""

from __future__ import annotations

from typing import Any

from servesim.reports.ink import INK
from servesim.reports.priced import FAMILIES, Priced
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import percent, time_ms


def operators(run: Run, priced: Priced) -> Drawing:
    """Draw each operator family's share of the time, by kind of step."""
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
                        weight="bold",
                    )  # fmt: skip
                left += share
            axes.text(0, y - 0.42, label, ha="left", va="center", weight="bold")
            axes.text(1, y - 0.42, time_ms(total / 1e6), ha="right", va="center", color=INK["muted"])
        axes.set_xlim(0, 1)
        axes.set_ylim(len(bars) - 0.6, -0.62)
        axes.set_axis_off()
        figure.subplots_adjust(left=0.005, right=0.995, top=0.99, bottom=0.01)

    total = sum(everything.values())
    longest = sorted(shown, key=lambda s: -everything[s[0]])
    alt = "Shares of step time: " + "; ".join(
        f"{words} {percent(everything[key] / total)}" for key, _, words in longest
    )
    caption = (
        "The shares come from a repriced sample of the recorded steps. The operators account for "
        f"{percent(priced.recorded)} of the GPU time recorded for these steps."
    )
    legend = tuple((colour, words) for _, colour, words in shown)
    height = 64 * len(bars) + 6
    return wide("operators", "Step time by operator", alt + ".", paint, (height, height), caption, legend=legend)
