"""Figures by class of service and by tenant, and how evenly tenants were served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.distribution import describe
from servesim.metrics.requests import MS, SECOND, SLO_METRICS, RequestColumns, goodput, per

Slos = Mapping[str, Mapping[str, float]]
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""Of tokens in a tenant's service, as in VTC (Sheng et al., OSDI'24): outputs cost more than inputs."""


def by_class(columns: RequestColumns, labels: Sequence[str], slo: Mapping[str, float], slos: Slos) -> dict[str, Any]:
    """Each class's requests, latencies and goodput within its own limits (`slos`; `slo` where it has none), and the
    goodput of all together. `labels`: the class of each trace row."""
    classes = {name: _figures(columns, part, slos.get(name, slo)) for name, part in _parts(columns, labels)}
    good = sum(figures["goodput"]["good_requests"] for figures in classes.values() if figures["goodput"])
    return {
        "classes": classes,
        "good_requests": good,
        "request_goodput": per(good, columns.duration_ns / SECOND),
        "slo_attainment": per(good, len(columns)),
    }


def class_limits(
    labels: Sequence[str], rows: NDArray[np.int64], slo: Mapping[str, float], slos: Slos
) -> dict[str, NDArray[np.float64]]:
    """The limits in ms of the requests of these trace rows, by metric: those of their class where it has its own;
    infinite where there is none."""
    own = [slos.get(labels[row], slo) for row in rows.tolist()]
    known = [name for name in SLO_METRICS if name in slo or any(name in limits for limits in slos.values())]
    return {name: np.array([limits.get(name, np.inf) for limits in own], dtype=np.float64) for name in known}


def by_tenant(columns: RequestColumns, labels: Sequence[str], slo: Mapping[str, float]) -> dict[str, Any]:
    """Each tenant's figures and service, and Jain's index of fairness over tenants: 1 when all are alike, 1/n when one
    has everything. Of `service` (weighted tokens answered per weighted token asked for), of `speed` (output tokens per
    second of waiting, the harmonic mean over requests) and, with an SLO, of `slo_attainment`."""
    tenants = {
        name: _figures(columns, part, slo) | _service(part, len(labels)) for name, part in _parts(columns, labels)
    }
    keys = ("service", "speed", *(("slo_attainment",) if slo else ()))
    values = {key: [tenant["goodput"][key] if key == "slo_attainment" else tenant[key] for tenant in tenants.values()]
              for key in keys}  # fmt: skip
    return {"tenants": tenants, "jain_index": {key: jain_index(column) for key, column in values.items()}}


def jain_index(values: Sequence[float | None]) -> float | None:
    """(sum x)^2 / (n sum x^2) (Jain, Chiu & Hawe, 1984); what is missing counts as 0."""
    x = np.array([value or 0.0 for value in values], dtype=np.float64)
    return per(float(x.sum() ** 2), float(len(x) * (x**2).sum()))


def _parts(columns: RequestColumns, labels: Sequence[str]) -> list[tuple[str, RequestColumns]]:
    """The records of each label, in order of the labels; retries belong to their row."""
    names = np.array(labels)[columns.table["row"] % len(labels)]
    return [(str(name), _take(columns, names == name)) for name in np.unique(names)]


def _take(columns: RequestColumns, which: NDArray[np.bool_]) -> RequestColumns:
    return RequestColumns({name: column[which] for name, column in columns.table.items()}, columns.done[which])


def _figures(columns: RequestColumns, part: RequestColumns, slo: Mapping[str, float]) -> dict[str, Any]:
    several = part.completed("output_len") > 1
    good = goodput(part, slo) if slo else None
    if good is not None:  # per second of the whole run, so that classes add up
        good["request_goodput"] = per(good["good_requests"], columns.duration_ns / SECOND)
    return {
        "arrived": len(part),
        "completed": int(part.done.sum()),
        "output_throughput": per(int(part.completed("output_len").sum()), columns.duration_ns / SECOND),
        "latency_ms": {
            "ttft": describe(part.ttft, MS),
            "tpot": describe(part.tpot[several], MS),
            "e2el": describe(part.e2el, MS),
        },
        "goodput": good,
    }


def _service(part: RequestColumns, rows: int) -> dict[str, float | None]:
    """`rows`: of the trace. A request none of whose attempts was answered asked for its cap."""
    table, done = part.table, part.done
    request = table["row"] % rows
    given = INPUT_WEIGHT * table["prompt_len"][done] + OUTPUT_WEIGHT * table["output_len"][done]
    failed = ~np.isin(request, request[done])
    _, first = np.unique(request[failed], return_index=True)
    asked = (INPUT_WEIGHT * table["prompt_len"] + OUTPUT_WEIGHT * table["max_tokens"])[failed][first]
    seconds = part.ntpot / SECOND
    return {
        "service": per(float(given.sum()), float(given.sum() + asked.sum())),
        "speed": per(float(len(seconds)), float(seconds.sum())),
    }
