"""Figures by class of service and by tenant, and how evenly tenants were served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servesim.metrics.classes import Slos
from servesim.metrics.requests import SECOND, Part, goodput, per


def by_class(whole: Part, parts: Mapping[str, Part], slo: Mapping[str, float], slos: Slos) -> dict[str, Any]:
    """Return each class's requests, latencies and goodput within its own limits (`slos`; `slo` where it has none), and
    the goodput of all together. `parts`: the records by class."""
    classes = {name: _figures(whole, part, slos.get(name, slo)) for name, part in parts.items()}
    good = sum(figures["goodput"]["good_requests"] for figures in classes.values() if figures["goodput"])
    return {
        "classes": classes,
        "good_requests": good,
        "request_goodput": per(good, whole.duration_ns / SECOND),
        "slo_attainment": per(good, whole.total("arrived")),
    }


def by_tenant(whole: Part, parts: Mapping[str, Part], rows: int, slo: Mapping[str, float]) -> dict[str, Any]:
    """Return each tenant's figures and service, and Jain's index of fairness over tenants: 1 when all are alike, 1/n
    when one has everything. The index is over `service` (weighted tokens answered per weighted token asked for),
    `speed` (output tokens per second of waiting, the harmonic mean over requests) and, with an SLO, `slo_attainment`.
    `parts`: the records by tenant; `rows`: of the trace."""
    tenants = {}
    for name, part in parts.items():
        service = part.service(rows)
        tenants[name] = _figures(whole, part, slo) | {
            "service": per(service.given, service.given + service.refused),
            "speed": per(service.answers, service.seconds),
        }
    keys = ("service", "speed", *(("slo_attainment",) if slo else ()))
    values = {key: [tenant["goodput"][key] if key == "slo_attainment" else tenant[key] for tenant in tenants.values()]
              for key in keys}  # fmt: skip
    return {"tenants": tenants, "jain_index": {key: jain_index(column) for key, column in values.items()}}


def jain_index(values: Sequence[float | None]) -> float | None:
    """Return (sum x)^2 / (n sum x^2) (Jain, Chiu & Hawe, 1984); what is missing counts as 0."""
    x = np.array([value or 0.0 for value in values], dtype=np.float64)
    return per(float(x.sum() ** 2), float(len(x) * (x**2).sum()))


def _figures(whole: Part, part: Part, slo: Mapping[str, float]) -> dict[str, Any]:
    good = goodput(part, slo) if slo else None
    if good is not None:  # per second of the whole run, so that classes add up
        good["request_goodput"] = per(good["good_requests"], whole.duration_ns / SECOND)
    return {
        "arrived": part.total("arrived"),
        "completed": part.total("completed"),
        "output_throughput": per(part.total("output_tokens"), whole.duration_ns / SECOND),
        "latency_ms": {name: part.latency_ms(name) for name in ("ttft", "tpot", "e2el")},
        "goodput": good,
    }
