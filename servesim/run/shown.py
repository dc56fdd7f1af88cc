"""A result in words: the text that Python prints, the table that notebooks show, and the rows of terminal and page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from servesim.contracts.feature import Feature, Rows
from servesim.metrics.words import number, percent
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


def limits_text(slo: Mapping[str, float]) -> str:
    """Return limits in words."""
    return ", ".join(f"{name} <= {limit:g} ms" for name, limit in slo.items())


def all_rows(summary: Mapping[str, Any]) -> Rows:
    """Return the rows of a run's table, those of features among them."""
    requests, flow, goodput = summary["requests"], summary["throughput"], summary["goodput"]
    engine, kv, cache = summary["engine"], summary["kv"], summary["prefix_cache"]
    price, shares, batch = summary["price"], summary["cost_shares"], summary["engine"]["batch_size"]
    within = summary["uncertainty"]
    interval = f"; GPU time within {percent(within)} by repeats (95 %)" if within is not None else ""
    others = [f", {requests[name]:,} {name}" for name in ("rejected", "aborted", "retries") if requests[name]]
    rows = [
        ("requests", f"{requests['completed']:,} completed of {requests['arrived']:,}{''.join(others)}"),
        ("duration", f"{number(summary['duration_s'])} s, at most {requests['max_concurrency']:,} requests at once"),
        (
            "throughput",
            f"{number(flow['request_throughput'])} requests/s, {number(flow['output_throughput'])} output tokens/s, "
            f"{number(flow['total_token_throughput'])} tokens/s in all",
        ),
    ]
    if goodput:
        limits = limits_text(goodput["slo_ms"])
        own = [f"{name} {limits_text(slo)}" for name, slo in goodput.get("slo_classes_ms", {}).items()]
        limits = "; ".join(filter(None, (limits, *own)))
        rows.append(
            (
                "goodput",
                f"{number(goodput['request_goodput'])} requests/s, {percent(goodput['slo_attainment'])} "
                f"of arrivals within {limits}",
            )
        )
    rows += [
        ("batch", f"{number(batch['mean'])} requests a step, at most {batch['max']:.0f}" if batch else "-"),
        (
            "GPU",
            f"busy {percent(engine['gpu_busy_share'])}, MFU {percent(engine['mfu'])}, MBU {percent(engine['mbu'])}",
        ),
        (
            "KV memory",
            f"{percent(kv['used_share'])} used, {percent(kv['internal_share'])} wasted inside blocks, {_peak(kv)}",
        ),
        ("preemptions", f"{engine['preemptions']:,}, {engine['recomputed_tokens']:,} tokens recomputed"),
        ("prefix cache", f"{percent(cache['hit_rate'])} of prompt tokens found" if cache else "off"),
        *_drafts(summary["speculation"]),
        (
            "price",
            f"${number(price['usd_per_million_tokens'])} per million tokens, "
            f"${number(price['usd_per_million_output_tokens'])} per million output tokens "
            f"at ${price['usd_per_gpu_hour']:g} a GPU-hour",
        ),
        (
            "kernel costs",
            f"{percent(shares['measured'])} measured, {percent(shares['interpolated'])} interpolated, "
            f"{percent(shares['extrapolated'])} extrapolated, {percent(shares['roofline'])} roofline" + interval,
        ),
        ("queue", _queue(summary["stability"]) if requests["completed"] else "none: nothing was served"),
        *_pools(summary),
        *((name, number(value)) for name, value in summary.get("custom_metrics", {}).items()),
    ]
    return with_rows(rows, summary)


def _peak(kv: Mapping[str, Any]) -> str:
    if kv["peak_share"] is None:
        return "pools differ in size"
    return f"peak {percent(kv['peak_share'])} of {kv['capacity_tokens']:,} tokens"


def _pools(summary: Mapping[str, Any]) -> Rows:
    """A line for each pool, where a scenario names them."""
    if not summary["scenario"].get("pools"):
        return []
    return [
        (
            f"pool {name}",
            f"{pool['requests']:,} requests, {number(pool['replicas_mean'])} replicas up in the mean, "
            f"busy {percent(pool['busy_share'])}, imbalance {number(pool['imbalance'])}, "
            f"queue {number(pool['queue_ms'])} ms, {percent(pool['hit_rate'])} found, ${number(pool['usd'])}",
        )
        for name, pool in summary["pools"].items()
    ]


def _queue(stability: Mapping[str, Any]) -> str:
    if stability["unstable"]:
        return "UNSTABLE"
    return "stable" if stability["decided"] else "undecided: the trace is too short to tell"


def _drafts(speculation: Mapping[str, Any] | None) -> Rows:
    if speculation is None:
        return []
    by_position = speculation["per_position_acceptance_rates"]
    rates = " / ".join(percent(rate) for rate in by_position[:8])
    if len(by_position) > 8:
        rates += f" / ... ({len(by_position)} positions)"
    length = number(speculation["acceptance_length"])
    return [("speculation", f"{length} tokens a verification; accepted by position {rates or '-'}")]
