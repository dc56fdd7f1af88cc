"""Tables on the page of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.figures import Figure, Group
from servesim.metrics.figures import with_unit
from servesim.metrics.request_figures import LATENCY_LABELS, SHOWN
from servesim.reports.page import Table
from servesim.reports.priced import Priced
from servesim.reports.run import Run
from servesim.reports.words import percent, seconds, shortened, time_ms
from servesim.run.shown import UNNAMED, labeled


def latency_table(run: Run) -> Table:
    """Return the statistics of every latency."""
    columns = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
    rows = []
    for key in SHOWN:
        stats = run.summary["latency_ms"][key]
        cells = [time_ms(stats[c]) for c in columns] if stats else ["–"] * len(columns)
        rows.append((LATENCY_LABELS[key], *cells))
    return Table("Latency", ("", *columns), rows)


def groups_table(run: Run, kind: str) -> Table | None:
    """Return the figures of each class or tenant (`kind`), ordered by number of requests, or None without labels."""
    found = labeled(run.summary, kind)
    if found is None:
        return None
    groups, others, requests = found
    columns = (kind, "requests", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "within limits")
    rows = [_group_row(name, group) for name, group in groups]
    if others:
        rows.append((others, f"{requests:,}", *["–"] * (len(columns) - 2)))
    return Table(f"By {kind}", columns, rows)


def _group_row(name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    stats = [group["latency_ms"][metric] for metric in ("ttft", "tpot")]
    latencies = [time_ms(one[p]) if one else "–" for one in stats for p in ("p50", "p99")]
    goodput = group["goodput"]
    return (
        shortened(name) or UNNAMED,
        f"{group['arrived']:,}",
        *latencies,
        percent(goodput["slo_attainment"]) if goodput else "–",
    )


def replicas_table(run: Run) -> Table | None:
    """Return the load of each replica of a cluster, with pool names if there are several pools."""
    found = run.summary.get("replicas") or []
    if len(found) < 2:
        return None
    pools = len({one["pool"] for one in found}) > 1
    rows = [
        (
            f"{one['replica']}" + (f", {one['pool']}" if pools else ""),
            f"{one['requests']:,}",
            f"{one['output_tokens']:,}",
            percent(one["busy_share"]),
            percent(one["hit_rate"]),
            time_ms(one["queue_ms"]),
            percent(one["kv_used_share"]),
            percent(one["kv_peak_share"]),
            seconds(one["up_s"]),
        )
        for one in found
    ]
    columns = (
        "replica",
        "requests",
        "output tokens",
        "GPU busy",
        "hit rate",
        "mean queue time",
        "KV, mean",
        "KV, peak",
        "up",
    )
    return Table("Replicas", columns, rows)


def operators_table(priced: Priced) -> Table:
    """Return the table of the operators that take the longest."""
    found = priced.operators()
    total = sum(found.values())
    rows = [(name.replace("_", " "), percent(ns / total), seconds(ns / 1e9)) for name, ns in list(found.items())[:9]]
    return Table("Costliest operators", ("operator", "share", "time"), rows)


def definitions(run: Run, groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """Return every figure of the run's summary: its path, its value (empty if several objects, such as replicas, each
    have one) and its definition."""
    rows = []
    for group in groups:
        section = group.within(run.summary)
        if section is None:
            continue
        for path, figure in group.flat():
            inside = group.many or "[]" in path
            if not inside and figure.name not in section:
                continue
            value = "" if inside else _value(figure, section[figure.name])
            path = f"{group.section}.{path}" if group.section else path
            rows.append((path, value, figure.doc.replace("`", "")))
    return rows


MOST = 60
"""Maximum number of characters for a list or map value."""


def _value(figure: Figure, value: Any) -> str:
    return "–" if value is None else shortened(with_unit(figure, value), MOST)
