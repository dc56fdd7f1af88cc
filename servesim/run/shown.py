"""A result as text: what Python prints, the tables that notebooks show, and the rows shown in the terminal and on the
page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import Any

from servesim.contracts.figures import Group, Rows
from servesim.errors import UserError
from servesim.metrics.figures import GROUPS, rows_of, unknown_fields
from servesim.metrics.request_figures import LATENCY_LABELS, SHOWN, limits_of, limits_text
from servesim.metrics.slo import SLO_METRICS
from servesim.metrics.stability import GROWING
from servesim.metrics.words import amount, number, percent
from servesim.plugins.user_policies import blaming
from servesim.run.label_groups import counted_together, others
from servesim.run.scenario import scenario_features

FIRST = ("requests", "throughput", "goodput", "price", "queue")
"""Rows shown first."""
STATISTICS = ("mean", "p50", "p90", "p99", "max")


def title(summary: Mapping[str, Any]) -> str:
    """Return a title that names the workload and the system of a run."""
    s, trace = summary["scenario"], summary["provenance"]["trace"]
    gpus = s["tp"] * s["pp"] * s.get("dp", 1) * s["replicas"]
    policies = f"{s['scheduler']['name']} / {s['kv']['name']}"
    return f"{trace['name']}, {trace['requests']:,} requests: {s['model']} on {gpus} x {s['gpu']}, {policies}"


def answer(summary: Mapping[str, Any]) -> str:
    """Return what a run says in one sentence: whether the SLO is met, the price, and whether the queue is stable."""
    stable, requests = summary["stability"], summary["requests"]
    if not requests["completed"]:
        return f"None of {requests['arrived']:,} requests was served."
    if stable["unstable"]:
        return f"UNSTABLE: {GROWING}, so add servers: servesim capacity finds the rate that this deployment sustains."
    goodput, flow = summary["goodput"], summary["throughput"]["request_throughput"]
    if goodput and (asked := summary["scenario"].get("slo_percentiles")) and "slo_classes_ms" not in goodput:
        said = _each_limit(goodput, asked)
    elif goodput:
        share = percent(goodput["slo_attainment"])
        said = f"This deployment meets the SLO for {share} of requests ({limits_of(goodput)})"
    else:
        known = [(LATENCY_LABELS[key], summary["latency_ms"][key]) for key in ("ttft", "tpot")]
        p99 = " and ".join(f"{name} p99 {number(found['p99'])} ms" for name, found in known if found)
        said = f"This deployment has {p99}"
    price = summary["price"]["usd_per_million_tokens"]
    cost = f" and ${price:.3g} per million tokens" if price is not None else ""
    queue = "the queue is stable" if stable["decided"] else "the run is too short to tell whether the queue is stable"
    return f"{said} at {number(flow)} completed requests/s{cost}; {queue}."


def _each_limit(goodput: Mapping[str, Any], asked: Mapping[str, float]) -> str:
    """Return the share of requests within each limit, and whether those with a percentile are met."""
    shares, limits = goodput["attainment_by_metric"], goodput["slo_ms"]
    met = all(shares[name] >= percentile / 100 for name, percentile in asked.items())
    said = [
        f"{percent(shares[name])} within {limits_text({name: limits[name]})}"
        + (f" ({asked[name]:g} % asked)" if name in asked else "")
        for name in SLO_METRICS
        if name in limits
    ]
    return f"This deployment {'meets' if met else 'misses'} the SLO: of all requests, {', '.join(said)},"


def as_text(summary: Mapping[str, Any]) -> str:
    """Return a result in a few lines."""
    latencies = [
        (LATENCY_LABELS[key], f"p50 {amount(stats['p50'], 'ms')}, p99 {amount(stats['p99'], 'ms')}")
        for key in SLO_METRICS
        if (stats := summary["latency_ms"][key])
    ]
    rows = [(label, text) for label, text in all_rows(summary) if label in FIRST or label in custom_of(summary)]
    lines = [f"<Result {title(summary)}", *(f"{label}: {text}" for label, text in (*latencies, *rows))]
    return "\n  ".join(lines) + ">"


def as_html(summary: Mapping[str, Any]) -> str:
    """Return a result as HTML tables, with its warnings, and its notes collapsed."""
    head = "".join(f"<th>{name}</th>" for name in ("ms", *STATISTICS))
    rows = []
    for key in SHOWN:
        if stats := summary["latency_ms"][key]:
            cells = "".join(f"<td>{number(stats[name])}</td>" for name in STATISTICS)
            rows.append(f"<tr><th>{LATENCY_LABELS[key]}</th>{cells}</tr>")
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in all_rows(summary))
    warnings, notes = ("".join(f"<li>{escape(said)}</li>" for said in summary[key]) for key in ("warnings", "notes"))
    return (
        f"<div><b>{escape(title(summary))}</b><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<table><tbody>{facts}</tbody></table>"
        f"<p>{escape(answer(summary))}</p>{f'<ul>{warnings}</ul>' if warnings else ''}"
        f"<details><summary>{len(summary['notes'])} notes</summary><ul>{notes}</ul></details></div>"
    )


DERIVED = "preemptions_per_request"
"""A metric used in comparisons that is not a figure of a run."""


def groups_of(features: Sequence[str] = ()) -> tuple[Group, ...]:
    """Return all figures of a run, including figures of installed features and of the user's own. Raise UserError for a
    section that already exists."""
    found = [*GROUPS]
    metrics = {name for group in GROUPS for figure in group.figures for name in figure.metrics} | {DERIVED}
    taken = {group.section for group in GROUPS} | {"scenario", "provenance", "notes", "warnings", "custom_metrics"}
    taken |= {figure.name for group in GROUPS if not group.section for figure in group.figures}
    for feature in scenario_features(tuple(features)):
        for group in feature.groups():
            if group.section in taken:
                raise UserError(
                    f"feature {feature.name}: figures {group.section!r}: the summary already contains this section"
                )
            taken.add(group.section)
            found.append(group)
            for name in (name for figure in group.figures for name in figure.metrics):
                if name in metrics:
                    raise UserError(f"feature {feature.name}: figure {name}: a metric of this name already exists")
                metrics.add(name)
    for group in found[len(GROUPS) :] if features else ():
        if unknown := unknown_fields(group, found):
            raise UserError(
                f"figures of {group.section!r}: the group's text refers to {unknown[0]!r}, which is not one of its "
                "figures"
            )
    return tuple(found)


def all_rows(summary: Mapping[str, Any]) -> Rows:
    """Return the rows of a run's table."""
    own = summary["scenario"].get("features", ())
    with blaming_features(own):
        rows = rows_of(groups_of(own), summary)
    return rows + [(name, number(value)) for name, value in custom_of(summary).items()]


def blaming_features(own: Sequence[str]) -> AbstractContextManager[None]:
    """Turn exceptions of a user's features into PolicyErrors that name the class and line."""
    return blaming([type(feature) for feature in scenario_features(tuple(own))] if own else [])


def custom_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of the user's own metrics, by name."""
    found: Mapping[str, Any] = summary.get("custom_metrics", {})
    return found


MOST_GROUPS, LEAST_GROUPS = 12, 3
"""Maximum number of classes or tenants in a table, and minimum number of tenants shown, however few requests they
have."""
FEW = 10
"""Number of requests below which the figures of a tenant are not meaningful."""
UNNAMED = "(none)"


def labeled(summary: Mapping[str, Any], kind: str) -> tuple[list[tuple[str, dict[str, Any]]], str, int] | None:
    """Return the name and figures of each class or tenant (`kind`) that a table shows, starting with those with the
    most requests, then the name for all others (empty if there are none) and their number of requests. Return None if
    the trace has no such labels."""
    key = "classes" if kind == "class" else "tenants"
    if key not in summary:
        return None
    every = sorted(summary[key][key].items(), key=lambda item: -int(item[1]["arrived"]))
    groups = [(name, group) for name, group in every if counted_together(name) is None]
    shown = [
        (name, group)
        for i, (name, group) in enumerate(groups[:MOST_GROUPS])
        if kind == "class" or i < LEAST_GROUPS or int(group["arrived"]) >= FEW
    ]
    if len(groups) == len(every) == len(shown) + 1:  # one row either way
        shown = groups
    rest = len(groups) - len(shown) + sum(counted_together(name) or 0 for name, _ in every)
    requests = sum(int(group["arrived"]) for _, group in every) - sum(int(group["arrived"]) for _, group in shown)
    return shown, others(rest) if rest else "", requests
