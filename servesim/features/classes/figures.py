"""Figures by class of service and by tenant, and how evenly tenants were served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from servesim.contracts.figures import Figure, Group
from servesim.metrics.classes import Slos
from servesim.metrics.measured import good_of
from servesim.metrics.request_figures import GOODPUT
from servesim.metrics.requests import SECOND, Part, Service, per
from servesim.metrics.slo import SLO_METRICS
from servesim.run.label_groups import MOST_APART, LabelSums, group_name
from servesim.schemas import COUNT, DISTRIBUTION, FIGURE, a_map, an_object

TOGETHER = f". Only the {MOST_APART} with the most requests are listed. All others are combined as `(N others)`"


@dataclass(frozen=True)
class Some:
    """The requests of one class or tenant, in the form that the figures need."""

    part: Part
    slo: Mapping[str, float]
    """Limits in ms."""
    seconds: float
    """Duration of the whole run, so that rates of classes add up."""
    rows: int = 0
    """Number of requests in the trace."""

    @cached_property
    def service(self) -> Service:
        """Tokens served and tokens refused."""
        return self.part.service(self.rows)

    @property
    def good(self) -> dict[str, Any] | None:
        """Goodput within the limits, or None without limits."""
        return GOODPUT.values(good_of(self.part, self.slo, seconds=self.seconds)) if self.slo else None


def _total(name: str, doc: str) -> Figure:
    return Figure(name, doc, lambda some: some.part.total(name), schema=COUNT)


def _latencies(some: Some) -> dict[str, Any]:
    return {name: some.part.latency_ms(name) for name in SLO_METRICS}


OF_CLASS = Group(
    "classes",
    "class",
    (
        _total("arrived", "number of requests that arrived"),
        _total("completed", "number of requests that completed"),
        Figure("output_throughput", "output tokens of completed requests divided by `duration_s`",
               lambda some: per(some.part.total("output_tokens"), some.seconds), "tokens/s"),
        Figure("latency_ms", "latencies of the requests", _latencies, "ms",
               an_object(**dict.fromkeys(SLO_METRICS, DISTRIBUTION))),
        Figure("goodput", "goodput within the limits that apply to these requests. `null` without limits",
               lambda some: some.good, schema=GOODPUT.schema()),
    ),
)  # fmt: skip


OF_TENANT = Group(
    "tenants",
    "tenant",
    (
        *OF_CLASS.figures,
        Figure(
            "service",
            "share of the requested tokens that were served. An output token counts as two tokens",
            lambda some: per(some.service.given, some.service.given + some.service.refused),
            "share",
        ),
        Figure(
            "speed",
            "output tokens per second of end-to-end latency, as the harmonic mean over requests",
            lambda some: per(some.service.answers, some.service.seconds),
            "tokens/s",
        ),
    ),
)


@dataclass(frozen=True)
class Classes:
    """All classes of a run."""

    whole: Part
    parts: Mapping[str, Part]
    slo: Mapping[str, float]
    slos: Slos
    """Limits of classes that have their own."""

    @cached_property
    def seconds(self) -> float:
        """The duration."""
        return self.whole.duration_ns / SECOND

    @cached_property
    def each(self) -> dict[str, Any]:
        """Figures of each class."""
        own = {group_name(label): limits for label, limits in self.slos.items()}
        slos = {name: own.get(name, self.slo) for name in self.parts}
        return {name: OF_CLASS.values(Some(part, slos[name], self.seconds)) for name, part in self.parts.items()}

    @cached_property
    def good(self) -> int:
        """Number of requests within the limits of their class."""
        return sum(one["goodput"]["good_requests"] for one in self.each.values() if one["goodput"])


CLASSES = Group(
    "classes",
    "classes",
    (
        Figure("classes", f"figures of each class, by name{TOGETHER}", lambda c: c.each, inside=OF_CLASS),
        Figure("good_requests", "completed requests that meet every limit of their class", lambda c: c.good,
        schema=COUNT), Figure("request_goodput",
               "good requests divided by `duration_s`", lambda c: per(c.good, c.seconds), "requests/s"),
        Figure("slo_attainment",
               "good requests divided by all requests that arrived",
               lambda c: per(c.good, c.whole.total("arrived")), "share"),
    ),
    doc="Present if the trace labels requests by class (`slo_class`).",
    rows=(),
)  # fmt: skip


@dataclass(frozen=True)
class Tenants:
    """All tenants of a run."""

    whole: Part
    parts: Mapping[str, Part]
    rows: int
    """Number of requests in the trace."""
    slo: Mapping[str, float]
    sums: LabelSums | None = None
    """Sums of every tenant, used if some tenants share a part."""

    @cached_property
    def each(self) -> dict[str, Any]:
        """Figures of each tenant."""
        seconds = self.whole.duration_ns / SECOND
        return {name: OF_TENANT.values(Some(part, self.slo, seconds, self.rows)) for name, part in self.parts.items()}

    @property
    def jain(self) -> dict[str, float | None]:
        """Jain's index over tenants, for each figure in which tenants may differ."""
        if self.sums is not None:
            shares = {"service": ("given", "given", "refused"), "speed": ("answers", "seconds")}
            shares |= {"slo_attainment": ("good", "arrived")} if self.slo else {}
            return {key: jain_index(self.sums.share(*of).tolist()) for key, of in shares.items()}
        each = self.each.values()
        found = {key: jain_index([one[key] for one in each]) for key in ("service", "speed")}
        good = [one["goodput"]["slo_attainment"] for one in each] if self.slo else []
        return found | ({"slo_attainment": jain_index(good)} if self.slo else {})


TENANTS = Group(
    "tenants",
    "tenants",
    (
        Figure("tenants", f"figures of each tenant, by name{TOGETHER}", lambda t: t.each, inside=OF_TENANT),
        Figure("jain_index", "Jain's fairness index over tenants for `service`, `speed` and, with limits, "
               "`slo_attainment`: 1 if all n tenants are served equally, 1/n if one tenant gets everything",
               lambda t: t.jain, schema=a_map(FIGURE)),
    ),
    doc="Present if the trace labels requests by tenant.",
    rows=(),
)  # fmt: skip


def jain_index(values: Sequence[float | None]) -> float | None:
    """Return (sum x)^2 / (n sum x^2) (Jain, Chiu & Hawe, 1984); missing values count as 0."""
    x = np.array([value or 0.0 for value in values], dtype=np.float64)
    return per(float(x.sum() ** 2), float(len(x) * (x**2).sum()))
