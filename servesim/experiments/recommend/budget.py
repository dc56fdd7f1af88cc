"""Rows of a question for the least latency: what is left of a budget buys further replicas; intervals of latencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.experiments.capacity import Found
from servesim.experiments.capacity_answer import Answer
from servesim.experiments.capacity_study import Study
from servesim.experiments.goals import Goal
from servesim.experiments.recommend.aims import LeastLatency
from servesim.experiments.statistics import interval

Row = Mapping[str, Any]


def timed(found: Found, goals: Sequence[Goal], aim: LeastLatency, most: Mapping[str, int]) -> None:
    """Run deployments that carry the rate with the replicas that the budget buys (`most`, by label), replace their
    rows, and add the latency of each row. A row that needs more than these stays, as does one that no longer carries
    the rate."""
    study = found.study
    carried = {row["label"]: row["replicas"] for row in found.rows if row["verdict"] == "carries"}
    wide = {label: most[label] for label, n in carried.items() if n < most[label] and label not in study.scaled}
    wanted = [(v, float(n)) for v in study.variants if (n := wide.get(v.label)) and (v.label, n) not in study.judged]
    if wanted:
        study.run_at("replicas", wanted)
    sizes: dict[str, int | None] = {
        label: n if (judged := study.judged.get((label, n))) and judged.carried else None for label, n in wide.items()
    }
    rows = Answer(study, goals).by_price(aim.rate, {v.label: sizes.get(v.label) for v in study.variants})
    for row, new in zip(found.rows, rows, strict=True):
        if new["replicas"] is not None and new["verdict"] == "carries":
            row |= new | {"binds": row["binds"]}
        row["latency"] = latency(study, row, aim.metric) if row["verdict"] == "carries" else None
        if row["latency"]:
            found.document["answer"] = f"No deployment sustains {aim.rate:.4g} requests/s within {aim}"


def latency(study: Study, row: Row, metric: str) -> dict[str, Any]:
    """Return the latency of a row in ms with its interval over seeds, which is null for a single run of a log."""
    ms = _each(study, row, metric)
    ends = interval(ms, "t") if len(ms) > 1 else (None, None)
    low = None if ends[0] is None else max(float(ends[0]), 0.0)
    return {"metric": metric, "ms": float(ms.mean()), "low": low, "high": ends[1]}


def ratio_interval(study: Study, first: Row, other: Row, metric: str) -> tuple[float, float] | None:
    """Return the interval of the ratio of two rows' latencies, paired by seed; None for single runs of a log."""
    one, two = (_each(study, row, metric) for row in (first, other))
    if len(one) < 2 or not (one > 0).all() or not (two > 0).all():
        return None
    low, high = interval(np.log(two / one), "t")
    return math.exp(low), math.exp(high)


def _each(study: Study, row: Row, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([outcome.values[metric] for outcome in study.outcomes[row["label"], row["replicas"]]])
