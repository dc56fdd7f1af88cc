"""Page of one run."""

from __future__ import annotations

from typing import Any

from servesim.contracts.figures import Figure
from servesim.errors import UserError
from servesim.metrics.figures import said, text_of
from servesim.metrics.stability import GROWING
from servesim.reports.drawings import RUN
from servesim.reports.page import Alert, Page, Share, warned
from servesim.reports.priced import Priced
from servesim.reports.run import Run
from servesim.reports.run_tables import definitions, groups_table, latency_table, operators_table, replicas_table
from servesim.reports.slowest import slowest
from servesim.reports.words import count, gpu_of, name_of, percent, seconds, time_ms
from servesim.run.result import Result
from servesim.run.sections import rate_words
from servesim.run.shown import all_rows, answer, blaming_features, groups_of
from servesim.schemas import COUNT

COST_NOTES = ("extrapolated", "uncertainty")
"""Prefixes of notes about the certainty of kernel times."""
ORIGINS = (("measured", "teal"), ("interpolated", "blue"), ("extrapolated", "amber"), ("roofline", "slate"))


def run_page(result: Result, window_s: tuple[float, float] | None = None) -> Page:
    """Return the full page of one run."""
    run = Run(result)
    summary = run.summary
    priced: Priced | None = None
    unpriced = ""
    try:
        priced = run.priced
    except UserError as error:
        unpriced = f"Steps are not broken down by operator: {error}."
    groups = {
        "latency": ("latency_cdf",),
        "time": ("timeline", "queue_class", "queue_tenant", "kv_memory", "gantt"),
        "replicas": ("fleet", "replicas", "router_view"),
        "cost": ("operators", "roofline") if priced is not None else (),
        "speculation": ("acceptance", "drafts"),
    }
    figures = {
        group: [d for name in names if (d := RUN[name](run, window_s)) is not None] for group, names in groups.items()
    }
    return Page(
        "run",
        "run report",
        title(run),
        subtitle(run),
        chips(run),
        alerts(run),
        {
            "answer": answer(summary),
            "tiles": tiles(run),
            "latency": latency_table(run),
            "figures": figures,
            "operators": operators_table(priced) if priced else None,
            "origins": _origins(run),
            "origin_notes": [*_cost_notes(run), *([unpriced] if unpriced else [])],
            "groups": [table for kind in ("class", "tenant") if (table := groups_table(run, kind)) is not None],
            "replicas": replicas_table(run),
            "slowest": slowest(run),
            "facts": _facts(run),
            "provenance": _provenance(run),
            "notes": [note for note in summary["notes"] if not note.startswith(COST_NOTES)],
            "scenario_yaml": run.scenario.to_yaml(),
            "definitions": definitions(run, groups_of(run.scenario.features)),
        },
    )


def _gpus(run: Run) -> str:
    s = run.scenario
    if s.pools:
        return " and ".join(f"{pool['replicas']} × {gpu_of(pool['gpu'])}" for pool in s.pools)
    each = gpu_of(s.gpu) if s.tp * s.pp == 1 else f"{s.tp * s.pp} × {gpu_of(s.gpu)}"
    each = f"{s.dp} data-parallel ranks of {each}" if s.dp > 1 else each
    return each if s.replicas == 1 else f"{s.replicas} replicas of {each}"


def title(run: Run) -> str:
    """Return a one-line description of the simulated deployment."""
    return f"{name_of(run.scenario.model)} on {_gpus(run)}"


def subtitle(run: Run) -> str:
    """Return a one-line description of the workload."""
    trace = run.summary["provenance"]["trace"]
    rate = f" at {rate_words(run.scenario.rate)}" if run.scenario.rate else ""
    return f"{trace['requests']:,} requests of {trace['name']}{rate}"


def chips(run: Run) -> list[tuple[str, str]]:
    """Return the settings of most interest to a reader."""
    s = run.scenario
    found = [("scheduler", s.scheduler["name"]), ("KV cache", s.kv["name"])]
    if s.replicas > 1:
        found.append(("router", s.router["name"]))
    if s.speculation["name"] != "none":
        found.append(("speculation", s.speculation["name"]))
    found.append(("weights", s.dtype))
    if s.tp > 1:
        found.append(("tensor parallel", str(s.tp)))
    if s.pp > 1:
        found.append(("pipeline stages", str(s.pp)))
    found += [("limit", f"{name.upper()} ≤ {limit:g} ms") for name, limit in s.slo.items()]
    return found


def alerts(run: Run) -> list[Alert]:
    """Return the warnings a reader must not miss."""
    summary = run.summary
    found: list[Alert] = []
    if summary["stability"]["unstable"]:
        found.append(Alert("Unstable.", f"{GROWING[0].upper()}{GROWING[1:]}, not only on the server."))
    for what in ("rejection", "abort"):
        for reason, n in summary["requests"].get(f"{what}_reasons", {}).items():
            found.append(Alert(f"{n:,} {'rejected' if what == 'rejection' else 'aborted'}:", reason, "warn"))
    return found + warned(summary)


def tiles(run: Run) -> list[dict[str, Any]]:
    """Return the key figures, each with its unit and a note."""
    found, summary = [], run.summary
    groups = groups_of(run.scenario.features)
    with blaming_features(run.scenario.features):
        for group in groups:
            for tile in group.tiles if group.within(summary) is not None else ():
                text = said(tile.value, group, summary, groups, _on_page)
                if text is not None:
                    figure, _, unit = text.partition(" ")
                    line = said(tile.note, group, summary, groups, _on_page)
                    found.append(
                        {"name": tile.name, "value": figure, "unit": unit, "note": line, "bad": tile.bad(summary)}
                    )
    return found


def _on_page(figure: Figure | None, value: Any) -> str:
    """Return a figure as text for a page: a time with its unit, a large count shortened."""
    if value is None:
        return "–"
    if isinstance(value, dict | list):
        return text_of(figure, value)
    if figure is not None and figure.unit == "ms":
        return time_ms(value)
    if figure is not None and figure.unit == "s":
        return seconds(value)
    if figure is not None and figure.schema == COUNT and value >= 1e7:
        return count(value)
    return text_of(figure, value)


def _origins(run: Run) -> list[Share]:
    shares = run.summary["cost_shares"]
    return [Share(name, shares[name] or 0.0, percent(shares[name]), colour) for name, colour in ORIGINS]


def _cost_notes(run: Run) -> list[str]:
    """Return the certainty of the kernel times, and which of them lie outside the tables."""
    within = run.summary["uncertainty"]
    known = (
        []
        if within is None
        else [(f"GPU time is within ±{percent(within)}, according to repeated measurements (95 %).")]
    )
    notes = [note for note in run.summary["notes"] if note.startswith(COST_NOTES)]
    return known + [f"{note[0].upper()}{note[1:]}." for note in notes]


def _facts(run: Run) -> list[tuple[str, str]]:
    s, requests = run.scenario, run.summary["requests"]
    return [
        ("workload", f"{requests['input_tokens']:,} input and {requests['output_tokens']:,} output tokens"),
        ("model", f"{s.model}, {s.dtype} weights, {s.kv_dtype} KV"),
        ("GPUs", f"{_gpus(run)}: tensor parallel {s.tp}, pipeline stages {s.pp}, replicas {s.replicas}"),
        *all_rows(run.summary),
    ]


def _provenance(run: Run) -> list[tuple[str, str]]:
    p = run.summary["provenance"]
    tables, host = p["kernel_tables"], p["host_terms"]
    rows = [("trace", f"{p['trace']['name']}, sha256 {p['trace']['sha256'][:16]}…"), ("cost model", p["cost_model"])]
    if tables is None:
        rows.append(("kernel tables", "none: all costs are roofline estimates"))
    else:
        digest = ", ".join(f"{file.partition('.')[0]} {sha[:8]}" for file, sha in sorted(tables["sha256"].items()))
        rows.append(("kernel tables", f"{tables['name']}, measured by {', '.join(tables['measured_by'])}"))
        rows.append(("table hashes", digest))
    rows.append(("host terms", f"{run.scenario.host}, fitted on {host['engine']}" if host else "none"))
    rows += [(f"{kind} file", f"sha256 {sha[:16]}…") for kind, sha in sorted(p["policy_files"].items())]
    rows.append(("versions", ", ".join(f"{name} {v}" for name, v in sorted(p["versions"].items()))))
    return rows
