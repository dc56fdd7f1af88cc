"""Error bars in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.metrics.words import number, percent


def bar_rows(bars: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the error bars of means, and those of the rest if they were asked for."""
    wider = bars.get("propagated")
    return [("error bars", bars_text(bars)), *([("", propagated_text(wider))] if wider is not None else [])]


def bars_text(bars: Mapping[str, Any]) -> str:
    """Return intervals of means, and what they are known from; or why there are none."""
    if bars["kind"] is None:
        return f"none: {bars['says']}"
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
    spans = [f"mean {name} {number(bars[key]['low'])} to {number(bars[key]['high'])}" for key, name in names.items()]
    return f"{', '.join(spans)} ms in {bars['level']:.0%} of servers measured; {bars['says']}"


def propagated_text(found: Mapping[str, Any]) -> str:
    """Return intervals of what no truth is known of; an end where the queue grows without end is none."""
    names = {"ttft_p99": "TTFT p99", "tpot_p99": "TPOT p99", "e2el_p99": "E2E p99", "slo_attainment": "within limits"}
    names["usd_per_million_output_tokens"] = "$ per million output tokens"
    spans = []
    for key, name in names.items():
        if key in found:
            form = percent if key == "slo_attainment" else number
            low, high = (
                form(found[key][end]) if found[key][end] is not None else "unstable" for end in ("low", "high")
            )
            spans.append(f"{name} {low} to {high}")
    return f"{', '.join(spans)}: {found['says']}" if spans else found["says"]
