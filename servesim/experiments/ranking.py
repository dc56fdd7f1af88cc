"""Ranking of a sweep's variants at the same arrival rate, since every server looks better at a lower one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.experiments.metrics import METRICS, Metric
from servesim.experiments.verdicts import is_unstable

PARETO = ("usd_per_million_tokens", "e2el_p99", "output_throughput")


def rate_of(variant: Mapping[str, Any]) -> float | None:
    """Return the rate of a variant as a number, even if it is a factor such as 3x, or None if `rate` is not an axis."""
    rate = variant["axes"].get("rate")
    return None if rate is None else float(str(rate).lower().removesuffix("x"))


def by_rate(variants: Sequence[Mapping[str, Any]]) -> dict[float | None, list[Mapping[str, Any]]]:
    """Return the variants by rate, in ascending order of rate. The key is None if `rate` is not an axis."""
    rates = sorted({rate_of(v) for v in variants}, key=lambda rate: -1.0 if rate is None else rate)
    return {rate: [v for v in variants if rate_of(v) == rate] for rate in rates}


def judge_stability(variants: Sequence[dict[str, Any]]) -> None:
    """Set the `stability` of each variant: above the lowest unstable rate, variants that are otherwise equal are
    unstable."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for v in variants:
        v["stability"] = None
        if v["status"] == "ok":
            runs = sum(address is not None for address in v["cells"])
            settled = "stable" if 2 * v["decided"] > runs else "undecided"
            v["stability"] = "unstable" if is_unstable(v) else settled
            groups.setdefault(repr([(k, x) for k, x in v["axes"].items() if k != "rate"]), []).append(v)
    for group in groups.values():
        group.sort(key=lambda v: rate_of(v) or 0.0)
        first = next((i for i, v in enumerate(group) if v["stability"] == "unstable"), len(group))
        for v in group[first:]:
            v["stability"] = "unstable"


def best_by_rate(variants: Sequence[Mapping[str, Any]], goal: Metric) -> list[dict[str, Any]]:
    """Return the best variant at each rate that has several to choose from, or the best of all if `rate` is not an
    axis."""
    sign, found = 1 if goal.better == "higher" else -1, []
    for rate, group in by_rate(variants).items():
        ranked = [v for v in group if v["values"][goal.name] is not None]
        if len(ranked) > (rate is not None):
            best = max(ranked, key=lambda v: sign * v["values"][goal.name])
            value = best["values"][goal.name]
            found.append(
                {"label": best["label"], "metric": goal.name, "value": value, "rate": best["axes"].get("rate")}
            )
    return found


def _known(value: float | None) -> bool:
    return value is not None and value == value


def pareto_front(variants: Sequence[Mapping[str, Any]], metrics: Sequence[str] = PARETO) -> set[str]:
    """Return the labels of the variants (with `values` by metric) that are not dominated by any other."""
    signs = np.array([1 if METRICS[name].better == "lower" else -1 for name in metrics])
    known = [v for v in variants if all(_known(v["values"].get(name)) for name in metrics)]
    points = np.array([[v["values"][name] for name in metrics] for v in known]).reshape(-1, len(metrics)) * signs
    return {v["label"] for v, on in zip(known, undominated(points), strict=True) if on}


def undominated(points: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each row of figures, of which less is better, whether no other row is at least as good in all of them
    and better in one."""
    return np.array([not ((points <= p).all(axis=1) & (points < p).any(axis=1)).any() for p in points], dtype=bool)
