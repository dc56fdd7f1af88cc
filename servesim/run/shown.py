"""A result at a glance: the text that Python prints, the table that notebooks show, and the rows of features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from servesim.contracts.feature import Feature, Rows
from servesim.run.scenario import scenario_features

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"), ("queue_time", "queue time"))
STATISTICS = ("mean", "p50", "p90", "p99", "max")


def title(summary: Mapping[str, Any]) -> str:
    """Return what was run on what."""
    s, trace = summary["scenario"], summary["provenance"]["trace"]
    gpus = s["tp"] * s["pp"] * s.get("dp", 1) * s["replicas"]
    policies = f"{s['scheduler']['name']} / {s['kv']['name']}"
    return f"{trace['name']}, {trace['requests']:,} requests: {s['model']} on {gpus} x {s['gpu']}, {policies}"


def figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the figures that are looked at first, named."""
    requests, flow, price = summary["requests"], summary["throughput"], summary["price"] or {}
    yield "completed", f"{requests['completed']:,} of {requests['arrived']:,}"
    yield "throughput", f"{flow['request_throughput']:.4g} requests/s, {flow['output_throughput']:,.4g} output tokens/s"
    if goodput := summary["goodput"]:
        yield "within the SLO", f"{100 * goodput['slo_attainment']:.1f} %"
    if (usd := price.get("usd_per_million_tokens")) is not None:
        yield "price", f"${usd:.4g} per million tokens"
    yield from (
        (name, f"{value:.6g}") for name, value in summary.get("custom_metrics", {}).items() if value is not None
    )
    if summary["stability"]["unstable"]:
        yield "queue", "UNSTABLE: still growing when arrivals ended"


def as_text(summary: Mapping[str, Any]) -> str:
    """Return a result in a few lines."""
    latencies = []
    for key, label in LATENCIES[:2] + LATENCIES[3:4]:
        if stats := summary["latency_ms"][key]:
            latencies.append(f"{label} p50 {stats['p50']:,.4g} ms, p99 {stats['p99']:,.4g} ms")
    lines = [f"<Result {title(summary)}", *latencies, *(f"{name}: {value}" for name, value in figures(summary))]
    return "\n  ".join(lines) + ">"


def as_html(summary: Mapping[str, Any]) -> str:
    """Return a result as tables, notes folded away."""
    head = "".join(f"<th>{name}</th>" for name in ("ms", *STATISTICS))
    rows = []
    for key, label in LATENCIES:
        if stats := summary["latency_ms"][key]:
            cells = "".join(f"<td>{stats[name]:,.4g}</td>" for name in STATISTICS)
            rows.append(f"<tr><th>{label}</th>{cells}</tr>")
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in figures(summary))
    notes = "".join(f"<li>{escape(note)}</li>" for note in summary["notes"])
    return (
        f"<div><b>{escape(title(summary))}</b><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<table><tbody>{facts}</tbody></table>"
        f"<details><summary>{len(summary['notes'])} notes</summary><ul>{notes}</ul></details></div>"
    )


def feature_rows(summary: Mapping[str, Any]) -> Rows:
    """Return the rows of all features, by rank."""
    return [row for feature in _features(summary) for row in feature.rows(summary)]


def with_rows(rows: Rows, summary: Mapping[str, Any]) -> Rows:
    """Return a table's rows with those of features among them."""
    found = [*rows]
    for feature in _features(summary):
        labels = [label for label, _ in found]
        at = next((labels.index(label) + 1 for label in feature.rows_after if label in labels), len(found))
        found[at:at] = feature.rows(summary)
    return found


def _features(summary: Mapping[str, Any]) -> tuple[Feature, ...]:
    return scenario_features(tuple(summary["scenario"].get("features", ())))
