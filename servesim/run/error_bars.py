"""Error bars of a run: the interval of mean TTFT, TPOT and E2E according to measured servers, or the reason why none is
known.

For figures without measurements (p99, goodput, price), see servesim.run.stretched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servesim.cost.host import is_shipped
from servesim.intervals.case import METRICS, Case, model_key, version_key
from servesim.intervals.fitted import LEVEL, WORST, Fitted, shipped
from servesim.metrics.request_figures import LATENCY_LABELS
from servesim.run.presets import preset_settings

ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Shares of servers that lie below each end of an interval."""
LATENCY_KEYS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Keys of latencies in a summary, by the metric names that intervals use."""


def case_of(summary: Mapping[str, Any]) -> Case | None:
    """Return the case of one replica of a run, or None if no request completed or no completed request has at least two
    tokens."""
    scenario, flow, times = summary["scenario"], summary["throughput"], summary["latency_ms"]
    means: dict[str, Any] = {metric: (times[key] or {}).get("mean") for metric, key in LATENCY_KEYS.items()}
    if not all(means.values()):
        return None
    per_s = flow["request_throughput"]
    clients = scenario["clients"]["max_concurrency"]
    in_flight = clients if clients and scenario["rate"] == "inf" else per_s * means["e2e"] / 1e3
    shares = summary["cost_shares"]
    return Case(
        engine=scenario["preset"] or "vllm",
        version=version_key(scenario["engine"]["version"] or ""),
        model=model_key(scenario["model"]),
        gpu=scenario["gpu"],
        precision=scenario["dtype"],
        tp=scenario["tp"],
        ep=_dealt(scenario),
        in_flight=in_flight / (scenario["replicas"] * scenario.get("dp", 1)),
        prompt=(flow["total_token_throughput"] - flow["output_throughput"]) / per_s,
        ttft_ms=means["ttft"],
        tpot_ms=means["tpot"],
        extrapolated=(shares["extrapolated"] or 0.0) + (shares["roofline"] or 0.0),
        measured=_measured(summary),
    )


def _measured(summary: Mapping[str, Any]) -> bool:
    """Return whether the host terms are a user's own, fitted to recordings of this model on this GPU (`servesim
    calibrate host`); terms written by hand have no engine that they were fitted on."""
    scenario, terms = summary["scenario"], summary["provenance"]["host_terms"]
    if not terms or not terms["engine"]:
        return False
    on = terms["provenance"]
    alike = model_key(str(on.get("model"))) == model_key(scenario["model"]) and on.get("gpu") == scenario["gpu"]
    return alike and not is_shipped(scenario["host"], on)


def _dealt(scenario: Mapping[str, Any]) -> int:
    """Return the number of GPUs over which experts are spread."""
    whole = scenario["tp"] * scenario.get("dp", 1) if scenario["engine"]["enable_expert_parallel"] else 1
    return int(scenario.get("ep") or whole)


def unlike(summary: Mapping[str, Any]) -> str:
    """Return the reason why a run is unlike anything measured, or an empty string if there is no such reason."""
    scenario = summary["scenario"]
    if summary["stability"]["unstable"]:
        return "the queue grows without bound"
    if "disaggregation" in summary:
        return "no measured server separates prefill and decode"
    if scenario["speculation"]["name"] != "none":
        return "no measured server uses speculative decoding"
    if scenario["pp"] > 1:
        return "no measured server has pipeline stages"
    if scenario.get("dp", 1) > 1:
        return "too few measured servers have data-parallel ranks"
    if scenario["kernel_tables"] is not None or scenario["host"] == "none":
        return "its kernel tables or host terms were never compared with measured servers"
    if scenario["engine"].get("enforce_eager"):
        return "no measured server runs without CUDA graphs"
    if scenario["engine"]["attention_backend"] != "auto":
        return "no measured server lacks fused attention"
    usual = preset_settings(scenario["preset"] or "vllm")["scheduler"]["name"]
    if scenario["scheduler"]["name"] != usual:
        return f"no measured server uses scheduler {scenario['scheduler']['name']}"
    return ""


def side_of(summary: Mapping[str, Any] | None) -> Case | str:
    """Return the case of a run, or the reason why no measured server is like it. `summary`: None if the run failed."""
    if summary is None:
        return "it failed"
    return unlike(summary) or case_of(summary) or "no request with two or more tokens completed"


def intervals(summary: Mapping[str, Any], fitted: Fitted | None = None, own: bool = False) -> dict[str, Any]:
    """Return the error bars of a finished run from its summary. `own`: those of a measured server, even if this one was
    not measured.

    `kind`: how far the run is from the measured servers, which names the folds that the interval is from (null: too
    far), `laboratory`: `own` if the server was measured, else `unseen` (null: no bars), `says`: both in words; `level`:
    share of measured servers inside an interval; by metric, `mean` (simulated), `low` and `high` in ms, and the
    `coverage` of such intervals on results that were held out (value, and its 95 % interval); `fitted`: date, cells and
    deployments; `farthest`: the farthest result of a laboratory that was left out, in words (empty: none); `doubt`: a
    warning in words if servers like this one were far off more often than others (empty: none). A run adds
    `propagated`: the intervals of percentiles, goodput and price, or the reason why there are
    none.
    """
    fitted = shipped() if fitted is None else fitted
    on = fitted.document["fitted_on"]
    found: dict[str, Any] = {
        "level": LEVEL,
        "kind": None,
        "laboratory": None,
        "says": "",
        "farthest": "",
        "doubt": "",
        "fitted": {"date": fitted.document["date"], "cells": on["cells"], "deployments": on["deployments"]},
        **dict.fromkeys(LATENCY_KEYS.values()),
    }
    case = side_of(summary)
    if isinstance(case, str):
        return found | {"says": case}
    case = replace(case, measured=case.measured or own)
    kind, why = fitted.kind_of(case)
    if kind is None:
        return found | {"says": why}
    for metric in METRICS:
        key = LATENCY_KEYS[metric]
        mean, factors = summary["latency_ms"][key]["mean"], fitted.factors(case, kind, metric)
        found[key] = {
            "mean": mean,
            "low": mean * factors.at(ENDS[0]),
            "high": mean * factors.at(ENDS[1]),
            "coverage": fitted.coverage(case, kind, metric),
        }
    if case.measured:
        return found | {
            "kind": kind.name,
            "laboratory": "own",
            "says": f"{kind.says}; your host terms were fitted to this server",
        }
    says = f"{kind.says}; your server was not measured"
    doubt, farthest = _doubt(fitted, case), _farthest(fitted, case)
    return found | {"kind": kind.name, "laboratory": "unseen", "says": says, "farthest": farthest, "doubt": doubt}


def _doubt(fitted: Fitted, case: Case) -> str:
    """Return a warning if measured servers like this one were far off more often than others, else an empty string."""
    known = fitted.doubt(case)
    if known is None:
        return ""
    name = LATENCY_LABELS[LATENCY_KEYS[known["of"]]]
    return (
        f"servers like this one are among the least certain: {name} of {100 * known['right']:.0f} % of them was over "
        f"{100 * known['worst']:.0f} % off (of all: {100 * WORST:.0f} %). Measure your server (servesim measure)"
    )


def _farthest(fitted: Fitted, case: Case) -> str:
    """Return the farthest result of the laboratories that were left out, in words, or an empty string."""
    unseen = fitted.unseen(case)
    rows = [one for one in unseen["left_out"] if one["with_bars"]] if unseen is not None else []
    if not rows:
        return ""
    farthest = max(rows, key=lambda one: abs(one["errors"]["e2e"]["log_median"]))
    median = math.expm1(farthest["errors"]["e2e"]["log_median"])
    where, side = farthest["servers"] or farthest["laboratory"], "fast" if median < 0 else "slow"
    return f"on {where}, E2E was simulated {100 * abs(median):.0f} % too {side} in the median"
