"""Ratios of simulated to measured times of measured cells, one dot each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.reports.figures.axes import gap_of, name_above, pitch_of
from servesim.reports.ink import INK, SERIES
from servesim.reports.svg import Drawing, wide

SHOWN = 14
"""Maximum number of rows; those with the most cells are drawn."""


def ratio_strips(cells: Sequence[Mapping[str, str]]) -> Drawing | None:
    """Draw each answered cell's ratios of TPOT and TTFT, with one row per engine, GPU and model."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        if not cell["screened"] and cell["tpot_ratio"] and cell["ttft_ratio"]:
            name = f"{cell['engine']}, {cell['gpu'].removesuffix('_sxm')}, {cell['model'].rpartition('/')[2]}"
            groups.setdefault(name, []).append((float(cell["tpot_ratio"]), float(cell["ttft_ratio"])))
    if not groups:
        return None
    shown = sorted(sorted(groups), key=lambda name: -len(groups[name]))[:SHOWN]
    each = pitch_of(shown, 38)

    def paint(figure: Any, narrow: bool) -> None:
        panels = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
        for i, (axes, words) in enumerate(zip(panels, ("TPOT", "TTFT"), strict=True)):
            axes.axvspan(1 / 1.1, 1.1, color=INK["rule"], alpha=0.6, linewidth=0)
            axes.axvline(1.0, color=INK["muted"], lw=1.0)
            for y, name in enumerate(shown):
                values = np.clip([pair[i] for pair in groups[name]], 0.1, 10.0)
                spread = np.linspace(-0.16, 0.26, len(values)) if len(values) > 1 else np.zeros(1)
                axes.scatter(values, y + spread, s=11, color=INK[SERIES[i]], alpha=0.6, linewidths=0)
                if narrow or i == 0:
                    name_above(axes, y, name, each)
            axes.set_xscale("log")
            axes.set_xlim(0.09, 11)
            axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10], ["0.1", "0.25", "0.5", "1", "2", "4", "10"])
            axes.set_xticks([], minor=True)
            axes.set_ylim(len(shown) - 0.5, -0.7)
            axes.set_yticks([])
            axes.set_title(words)
            axes.set_xlabel("simulated over measured")
            axes.grid(axis="x")
        high = figure.get_figheight() * 72
        gap = gap_of(figure, 2, 34 + 48, 76) if narrow else 0.0
        figure.subplots_adjust(left=0.01, right=0.99, top=1 - 34 / high, bottom=48 / high, wspace=0.05, hspace=gap)

    alt = "; ".join(
        f"{name}: {len(groups[name])} cells, median TPOT {np.median([t for t, _ in groups[name]]):.2f} and TTFT "
        f"{np.median([t for _, t in groups[name]]):.2f} times the measured values"
        for name in shown
    )
    caption = "Each dot is a cell. The band covers ±10 %. Ratios below 0.1 or above 10 are drawn at the edge."
    if len(groups) > len(shown):
        caption += f" Only the {len(shown)} largest of {len(groups)} sets are drawn."
    height = 92 + each * len(shown)
    return wide("ratios", "Simulated over measured", alt + ".", paint, (height, 2 * height), caption)
