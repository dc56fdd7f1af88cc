"""Router's view of replicas compared with their true state, if the router relies on periodic reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from servesim.reports.figures.axes import clock, thousands
from servesim.reports.ink import INK
from servesim.reports.run import Run
from servesim.reports.svg import Drawing, wide
from servesim.reports.words import number

A_BIN, MOST_BINS = 8, 300
"""Minimum mean number of requests per bin, and maximum number of bins."""


def router_view(run: Run) -> Drawing | None:
    """Draw the load of the replicas that the router chose, as the router saw it and as it actually was. Return None if
    views are live."""
    if "load_seen" not in run.requests:
        return None
    sent = run.requests["load_seen"] >= 0
    if not sent.any():
        return None
    at = (run.requests["arrival_ns"][sent] - run.begin_ns) / 1e9
    end = max(float(at.max()), 1e-9)
    bins = int(np.clip(sent.sum() // A_BIN, 1, MOST_BINS))
    edges = np.linspace(0, end, bins + 1)
    counts = np.histogram(at, edges)[0]
    full = counts > 0
    lines = [
        (words, colour, np.histogram(at, edges, weights=run.requests[column][sent])[0][full] / counts[full])
        for words, colour, column in (
            ("by the last report", "amber", "load_seen"),
            ("in truth", "blue", "load_there"),
        )
    ]
    unit, name = clock(end)
    x = ((edges[1:] + edges[:-1]) / 2)[full] / unit

    def paint(figure: Any, narrow: bool) -> None:
        axes = figure.subplots()
        for _, colour, values in lines:
            axes.plot(x, values, color=INK[colour], linewidth=1.5, marker="o" if len(x) == 1 else None)
        axes.set_xlim(0, end / unit)
        axes.set_ylim(0, max(max(float(values.max()) for _, _, values in lines) * 1.12, 1))
        axes.set_title("Requests at the replica that was chosen", pad=5)
        thousands(axes.yaxis)
        axes.set_ylabel("requests")
        axes.set_xlabel(f"{name} since the first arrival")
        figure.subplots_adjust(left=0.135 if narrow else 0.05, right=0.985, top=0.9, bottom=0.2 if narrow else 0.19)

    found = run.summary["router_view"]
    settings = run.summary["scenario"]["cluster"]
    age = f"Reports come every {settings['report_every_s']:g} s"
    if settings["report_lag_s"]:
        age += f", {settings['report_lag_s']:g} s late"
    alt = (
        f"On average, when a request was sent, its replica had {number(found['seen'])} requests according to its "
        f"last report and {number(found['there'])} in reality; the two differ by {number(found['error'])}."
    )
    return wide(
        "router_view", "What the router saw", alt, paint, (250, 250),
        f"{age}. When a request was sent, the router's view was off by {number(found['error'])} requests on average.",
        legend=tuple((colour, words) for words, colour, _ in lines),
    )  # fmt: skip
