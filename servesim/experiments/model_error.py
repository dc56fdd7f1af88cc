"""What of a compared change may be the model's error: intervals of ratios, by pairs of measured servers.

Beside the interval over workloads (replicates), never in it: more replicates narrow that one, not this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from servesim.experiments.run_metrics import metric_label
from servesim.intervals.case import Case
from servesim.intervals.fitted import LEVEL, Fitted, shipped
from servesim.intervals.pairs import WORDS, Spread, spread
from servesim.run.intervals import case_of, unlike

LATENCIES = {"ttft_mean": "ttft", "tpot_mean": "tpot", "e2el_mean": "e2e"}
"""Metrics that ratios of measured servers are known for."""


def model_errors(
    summaries: Sequence[Mapping[str, Any] | None], rows: Sequence[Mapping[str, Any]], fitted: Fitted | None = None
) -> list[dict[str, Any]]:
    """Return for each row of a mean latency how far the change may be off by the model: `low` and `high` (changes,
    as the row's), `level`, and `says` by which pairs; or nulls and in words why that is not known.

    `summaries`: of the first run of each variant, the baseline first, None where it failed; `rows`: of the comparison,
    by metric and then variant."""
    fitted = shipped() if fitted is None else fitted
    labels = list(dict.fromkeys(row["variant"] for row in rows))
    sides = {name: _side(summary) for name, summary in zip(labels, summaries, strict=True)}
    found = []
    for row in rows:
        if row["metric"] in LATENCIES and row["verdict"] != "baseline" and row["change"] is not None:
            what = _spread(fitted, sides[row["variant"]], sides[labels[0]], LATENCIES[row["metric"]])
            bars: dict[str, Any] = {"low": None, "high": None, "level": LEVEL, "says": what}
            if isinstance(what, Spread):
                ratio = 1 + row["change"]
                bars |= {"low": ratio / what.factor - 1, "high": ratio * what.factor - 1, "says": what.says}
                bars["differ_in"] = WORDS[what.kind]
            found.append({"variant": row["variant"], "metric": row["metric"], "change": row["change"], **bars})
    return found


def _side(summary: Mapping[str, Any] | None) -> Case | str:
    if summary is None:
        return "it failed"
    return unlike(summary) or case_of(summary) or "no request of two tokens or more completed"


def _spread(fitted: Fitted, a: Case | str, b: Case | str, metric: str) -> Spread | str:
    if isinstance(a, str):
        return a
    return b if isinstance(b, str) else spread(fitted, a, b, metric)


def sentences(found: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Return a sentence for each change whose error by the model is known."""
    return [
        f"{one['variant']}: {metric_label(one['metric'])} {100 * one['change']:+.1f} % against {baseline} would be "
        f"{100 * one['low']:+.0f} to {100 * one['high']:+.0f} % in {100 * one['level']:.0f} % of measured pairs of "
        f"{one['differ_in']}{'' if _told(one) else ': which is better is not known'}"
        for one in found
        if one["low"] is not None
    ]


def _told(one: Mapping[str, Any]) -> bool:
    """Whether the interval leaves out no change."""
    return not (math.isclose(one["low"], 0) or one["low"] < 0 < one["high"])
