"""Pareto front of a recommendation over price, latency and headroom, from the runs of the question itself.

Its points are the finalists at every load that they carried at full length: with each number of replicas that was tried
for a rate, or at each rate that was tried. Short runs of the search are no points, since latencies of runs of other
lengths cannot be compared. Intervals and the model's error are ignored.

Headroom is how much more load each replica is known to carry within the SLO, as a share: its highest load in these
runs, or if a rate is given without a budget, in the search's runs of one seed for the highest rate, over its load here.
So it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from servesim.experiments.capacity_answer import front_metrics
from servesim.experiments.capacity_error import price_of_row
from servesim.experiments.capacity_scaled import cost_of
from servesim.experiments.metrics import metric_label
from servesim.experiments.ranking import undominated
from servesim.experiments.variants import usd_of_gpus
from servesim.run.scenario import Scenario

if TYPE_CHECKING:
    from servesim.experiments.axes import Variant
    from servesim.experiments.capacity import Found

NEAR = 1.05
"""Ratio of prices below which points of the same deployment are not told apart in tables."""
Point = Mapping[str, Any]


def front(
    found: Found, limits: Sequence[Mapping[str, float]], metric: str, most: Mapping[str, float]
) -> dict[str, Any]:
    """Return the front as a part of a recommendation's document, and mark the rows on it. `metric`: the latency, or
    none for that closest to its limit; `most`: highest rate per replica that the search has found, by label."""
    metric = metric or front_metrics(found.rows, limits)[1]
    points = [
        point
        for v in found.study.variants
        for row in found.rows
        if row["label"] == v.label and row["verdict"] == "carries"
        for point in _points(found, v, row, metric, most.get(v.label, 0.0))
    ]
    figures = np.array([[price_of_row(p), p["ms"], -(p["headroom"] or 0.0)] for p in points]).reshape(-1, 3)
    for point, on in zip(points, undominated(figures), strict=True):
        point["on"] = bool(on)
    own = {(p["label"], p["replicas"], p["rate"]) for p in points if p["on"]}
    for row in found.rows:
        row["pareto"] = (row["label"], row["replicas"], row["rate"]) in own
    return {"latency": metric, "points": sorted(points, key=lambda p: (price_of_row(p), p["ms"]))}


def _points(found: Found, v: Variant, row: Mapping[str, Any], metric: str, most: float) -> list[dict[str, Any]]:
    """Return the loads that a deployment carried, with its price, latency and headroom at each."""
    study, each, points = found.study, row["gpus"] // row["replicas"], list[dict[str, Any]]()
    for (label, load), judged in sorted(study.judged.items()):
        by_replicas = row["by"] == "replicas"
        if label != v.label or not judged.carried or (not by_replicas and load > row["rate"]):
            continue
        replicas, rate = (int(load), row["rate"]) if by_replicas else (row["replicas"], load)
        outcomes = study.outcomes[label, load]
        tokens, ms = (
            float(np.mean([one.values[name] for one in outcomes])) for name in ("usd_per_million_tokens", metric)
        )
        usd = (
            cost_of(outcomes)["usd_per_hour"]
            if label in study.scaled
            else usd_of_gpus(Scenario.of(v.settings), each * replicas)
        )
        points.append(
            {
                "label": label,
                "gpu": row["gpu"],
                "gpus": each * replicas,
                "replicas": replicas,
                "rate": rate,
                "usd_per_hour": usd,
                "usd_per_million_tokens": tokens,
                "ms": ms,
            }
        )
    most = max([most, *(p["rate"] / p["replicas"] for p in points)])
    for p in points:
        p["headroom"] = None if v.label in study.scaled else most / (p["rate"] / p["replicas"]) - 1
    return points


def shown(points: Sequence[Point], near: float = NEAR) -> list[Point]:
    """Return the points of a table: those on the front, of which each costs at least `near` times as much per request
    as the one before of the same deployment."""
    last, found = dict[str, float](), list[Point]()
    for p in points:
        if p["on"] and price_of_row(p) >= near * last.get(p["label"], 0.0):
            last[p["label"]] = price_of_row(p)
            found.append(p)
    return found


def front_words(front: Mapping[str, Any]) -> str:
    """Return the title of a table of the front."""
    on, name = sum(p["on"] for p in front["points"]), metric_label(front["latency"])
    return f"Pareto front of price, {name} and headroom: {on} of {len(front['points'])} measured"
