"""Overlaid latency distributions of several variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.experiments.run_metrics import Run
from servesim.reports.experiment import Experiment, colours, limits_of
from servesim.reports.figures.axes import gap_of
from servesim.reports.figures.latency import POINTS, mark_limit, scale, share_axis
from servesim.reports.ink import INK
from servesim.reports.svg import Drawing, wide
from servesim.reports.variants import Legend, absent, states
from servesim.reports.words import time_ms

PANELS = (("ttft", "Time to first token"), ("tpot", "Time per output token"), ("e2el", "End to end"))

Latencies = Mapping[str, Mapping[str, Any]]
"""Latencies of all completed requests in ms, ascending, by variant and latency."""


def distributions(experiment: Experiment, labels: Sequence[str], more: str) -> Drawing | None:
    """Draw the latencies of all replicates of several variants together. `more` is text added to the caption. Raise
    UserError if the runs were not kept."""
    values, known = {}, states(experiment.document)
    for label in labels:
        runs = [Run.load(experiment.path(address)) for address in experiment.addresses.get(label, [])]
        found = {key: _latencies(runs, key) for key, _ in PANELS} if runs else {}
        if any(map(len, found.values())):
            values[label] = found
    limits = limits_of(experiment.document)
    caption = "All completed requests of all replicates." + (" Dashed lines are the limits." if limits else "") + more
    left = absent(experiment.document, values)
    values = {label + " (unstable)" * (known[label] == "unstable"): found for label, found in values.items()}
    return overlay(values, colours(list(values)), limits, caption, left=left)


def _latencies(runs: Sequence[Run], key: str) -> Any:
    values = np.concatenate([run.latency_ms(key)[run.done] for run in runs])
    return np.sort(values[np.isfinite(values)])


def overlay(
    values: Latencies, palette: Mapping[str, str], slo: Mapping[str, float], caption: str, narrow: bool | None = None,
    left: Legend = (),
) -> Drawing | None:  # fmt: skip
    """Draw cumulative distributions, one line per variant. `narrow` is as in servesim.reports.svg.wide; `left` names
    variants that are not drawn."""
    panels = [(key, title) for key, title in PANELS if any(len(v[key]) for v in values.values())]
    if not panels:
        return None

    def paint(figure: Any, phone: bool) -> None:
        shape = (len(panels), 1) if phone else (1, len(panels))
        grid = figure.subplots(*shape, squeeze=False, sharey=not phone).ravel()
        for axes, (key, title) in zip(grid, panels, strict=True):
            _lines(axes, {label: v[key] for label, v in values.items() if len(v[key])}, palette, slo.get(key))
            axes.set_title(title)
            share_axis(axes, phone)
        high = figure.get_figheight() * 72
        figure.subplots_adjust(
            left=0.16 if phone else 0.06, right=0.985, top=1 - 30 / high, bottom=46 / high, wspace=0.12,
            hspace=gap_of(figure, len(panels), 30 + 46, 74) if phone else 0.0,
        )  # fmt: skip

    said = [
        f"{label}: median {title.lower()} {time_ms(float(np.percentile(v[key], 50)))}, "
        f"99th percentile {time_ms(float(np.percentile(v[key], 99)))}"
        for key, title in panels
        for label, v in values.items()
        if len(v[key])
    ]
    legend = tuple((palette[label], label) for label in values) + left
    alt = "Cumulative distributions of latency. " + "; ".join(said) + "."
    return wide(
        "latency_cdf", "Latency distributions", alt, paint, (316, 210 * len(panels)), caption, narrow, legend=legend
    )


def _lines(axes: Any, values: Mapping[str, Any], palette: Mapping[str, str], limit: float | None) -> None:
    shares = np.unique(np.concatenate([np.linspace(0, 1, POINTS), 1 - np.geomspace(0.1, 1e-3, 20)]))
    low, high = np.inf, 0.0
    for label, latencies in values.items():
        x = np.maximum(np.quantile(latencies, shares, method="inverted_cdf"), 1e-3)
        axes.plot(x, shares, color=INK[palette[label]], linewidth=1.7)
        low, high = min(low, float(x[0])), max(high, float(x[-1]))
    if limit is not None:
        low, high = min(low, limit), max(high, limit)
    scale(axes, low, high, 4)
    if limit is not None:
        mark_limit(axes, limit)
