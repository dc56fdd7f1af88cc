"""Acceptance of drafts: by position, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from servesim.reports.figures.axes import clock, percents, thousands
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, half
from servesim.reports.words import number, percent


def by_position(figures: Mapping[str, Any]) -> Drawing | None:
    """Draw the acceptance rate of the draft at each position."""
    rates = figures["per_position_acceptance_rates"]
    if not rates:
        return None

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        x = np.arange(1, len(rates) + 1)
        axes.bar(x, rates, width=0.62, color=INK["teal"], linewidth=0)
        if len(rates) <= 8:
            for at, rate in zip(x, rates, strict=True):
                axes.annotate(percent(rate), (at, rate), xytext=(0, 5), textcoords="offset points", ha="center")
        axes.set_xticks(np.arange(1, max(len(rates), 3) + 1)[:: max(len(rates) // 8, 1) if len(rates) > 16 else 1])
        axes.set_xlim(0.4, max(len(rates), 3) + 0.6)
        axes.set_ylim(0, max(max(rates) * 1.15, 0.1))
        percents(axes.yaxis)
        axes.set_ylabel("accepted")
        axes.set_xlabel("position of the draft token")
        figure.subplots_adjust(left=0.1, right=0.98, top=0.97, bottom=0.17)

    length = number(figures["acceptance_length"])
    said = ", ".join(f"{i}: {percent(rate)}" for i, rate in enumerate(rates, 1))
    alt = f"Share of verified drafts that are accepted, by position: {said}."
    caption = f"Share of {figures['num_drafts']:,} verifications. A verification yields {length} tokens on average."
    return half("acceptance", "Acceptance by position", alt, paint, 300, caption)


def over_time(run: Run) -> Drawing | None:
    """Draw accepted and rejected draft tokens per second."""
    drafts, accepted = run.steps["drafts"] * run.steps["k"], run.steps["accepted"] * run.steps["k"]
    if not drafts.any():
        return None
    unit, name = clock(float(run.clock_s[-1]))
    width_s = float(run.edges[1] - run.edges[0]) / 1e9
    kept, all_of_them = (
        np.histogram(run.steps["end_ns"], run.edges, weights=w)[0] / width_s for w in (accepted, drafts)
    )

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        colours = [INK["teal"], INK["slate"]]
        axes.stackplot(run.clock_s / unit, kept, all_of_them - kept, colors=colours, alpha=0.75, linewidth=0)
        axes.set_xlim(0, (run.end_ns - run.begin_ns) / 1e9 / unit)
        axes.set_ylim(0, max(float(all_of_them.max()) * 1.08, 1.0))
        thousands(axes.yaxis)
        axes.set_ylabel("tokens/s")
        axes.set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.1, right=0.98, top=0.97, bottom=0.17)

    share = percent(float(accepted.sum()) / float(drafts.sum()))
    alt = f"Draft tokens verified per second, at most {all_of_them.max():,.0f}; {share} are accepted and delivered."
    caption = (
        f"Draft tokens verified per second: {share} of them are accepted and delivered, and the rest are discarded."
    )
    legend = (("teal", "accepted"), ("slate", "discarded"))
    return half("drafts", "Drafts over time", alt, paint, 300, caption, legend=legend)
