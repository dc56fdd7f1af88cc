"""What of a compared change may be the model's error: intervals of ratios, by pairs of measured servers.

Beside the interval over workloads (replicates), never in it: more replicates narrow that one, not this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.metrics import METRICS, metric_label
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, Fitted, shipped
from servesim.intervals.pairs import WORDS, Spread, spread
from servesim.run.error_bars import LATENCY_KEYS, case_of, unlike

LATENCIES = {"ttft_mean": "ttft", "tpot_mean": "tpot", "e2el_mean": "e2e"}
"""Metrics that ratios of measured servers are known for."""


def model_errors(
    sides: Sequence[Case | str], rows: Sequence[Mapping[str, Any]], fitted: Fitted | None = None
) -> list[dict[str, Any]]:
    """Return for each row of a mean latency how far the change may be off by the model: `low` and `high` (changes,
    as the row's), `level`, and `says` by which pairs; or nulls and in words why that is not known.

    `sides`: of the first run of each variant (`side_of`), the baseline first; `rows`: of the comparison, by metric and
    then variant."""
    fitted = shipped() if fitted is None else fitted
    labels = list(dict.fromkeys(row["variant"] for row in rows))
    by_label = dict(zip(labels, sides, strict=True))
    found = []
    for row in rows:
        if row["metric"] in LATENCIES and row["verdict"] != "baseline" and row["change"] is not None:
            what = ratio_spread(fitted, by_label[row["variant"]], sides[0], LATENCIES[row["metric"]])
            bars: dict[str, Any] = {"low": None, "high": None, "level": LEVEL, "says": what}
            if isinstance(what, Spread):
                ratio = 1 + row["change"]
                bars |= {"low": ratio / what.factor - 1, "high": ratio * what.factor - 1, "says": what.says}
                bars["differ_in"] = WORDS[what.kind]
            found.append({"variant": row["variant"], "metric": row["metric"], "change": row["change"], **bars})
    return found


def side_of(summary: Mapping[str, Any] | None) -> Case | str:
    """Return the case of a run, or in words why no measured server is like it. `summary`: None where it failed."""
    if summary is None:
        return "it failed"
    return unlike(summary) or case_of(summary) or "no request of two tokens or more completed"


def ratio_spread(fitted: Fitted, a: Case | str, b: Case | str, metric: str) -> Spread | str:
    """Return the spread of the ratio of `metric` of two sides, or in words why none is known."""
    if isinstance(a, str):
        return a
    return b if isinstance(b, str) else spread(fitted, a, b, metric)


def sentences(found: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Return a sentence for each change of a mean whose error by the model is known, and one for each variant on what
    is propagated."""
    means = [one for one in found if one["metric"] in LATENCIES and one["low"] is not None]
    said = [
        f"{one['variant']}: {metric_label(one['metric'])} {100 * one['change']:+.1f} % against {baseline} would be "
        f"{100 * one['low']:+.0f} to {100 * one['high']:+.0f} % in {100 * one['level']:.0f} % of measured pairs of "
        f"{one['differ_in']}{'' if _told(one) else ': which is better is not known'}"
        for one in means
    ]
    drawn: dict[str, list[Mapping[str, Any]]] = {}
    for one in found:
        if one["metric"] not in LATENCIES and not (one["low"] is None and one["high"] is None):
            drawn.setdefault(one["variant"], []).append(one)
    return [*said, *(_propagated(name, ones, baseline) for name, ones in drawn.items())]


def _propagated(variant: str, ones: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """Return a variant's propagated changes in words."""
    parts = [f"{metric_label(one['metric'])} {_ends(one)}" for one in ones]
    return (
        f"{variant} against {baseline} in {100 * ones[0]['level']:.0f} % of pairs of {ones[0]['differ_in']}, "
        f"{ones[0]['says']}: {', '.join(parts)}"
    )


def _ends(one: Mapping[str, Any]) -> str:
    metric = METRICS[one["metric"]]
    unit, times = metric.unit, 1.0
    if one["scale"] == "ratio":
        unit, times = "%", 100.0
    elif metric.unit == "share":
        unit, times = "points", 100.0
    style = "+.0f" if unit == "%" else "+.3g"
    ends = ("unstable" if one[end] is None else format(times * one[end], style) for end in ("low", "high"))
    return f"{' to '.join(ends)} {unit}".strip()


def baseline_sentence(bars: Mapping[str, Any] | None, baseline: str) -> str:
    """Return where measured servers would have the baseline's own means, or why that is not known; empty without."""
    if bars is None:
        return ""
    if bars["kind"] is None:
        return f"{baseline} itself: error bars none: {bars['says']}"
    spans = (
        f"{metric_label(f'{key}_mean')} {bars[key]['low']:,.4g} to {bars[key]['high']:,.4g} ms"
        for key in LATENCY_KEYS.values()
    )
    return f"{baseline} itself: {', '.join(spans)} in {100 * bars['level']:.0f} % of servers measured; {bars['says']}"


def words(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each reason that changes have no error bars a note that names the variants."""
    said: dict[str, list[str]] = {}
    for one in found:
        if one["low"] is None and one["high"] is None:
            names = said.setdefault(one["says"].removeprefix("none: "), [])
            if one["variant"] not in names:
                names.append(one["variant"])
    return [f"error bars of the model: none of {', '.join(names)}: {why}" for why, names in said.items()]


def _told(one: Mapping[str, Any]) -> bool:
    """Whether the interval leaves out no change."""
    return not (math.isclose(one["low"], 0) or one["low"] < 0 < one["high"])
