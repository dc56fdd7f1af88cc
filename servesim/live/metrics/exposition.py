"""Metrics as a page in Prometheus' text format, with prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from servesim.live.driver import Driver
from servesim.live.metrics.dialect import Dialect, Engine, Family, Value
from servesim.live.metrics.histogram import NS, Histogram
from servesim.live.watcher import Page


def page(model: str, dialect: Dialect, engines: Sequence[Engine], past: Sequence[Engine], driver: Driver) -> Page:
    """Return the metrics of a model's engines. `past`: engines that have crashed or are gone, which the counters of
    their server still count. The format is the same for whoever asks, as that of the engines: in
    OpenMetrics, Prometheus would get names with escaped colons."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(model, dialect, engines, past, driver))
    return Page(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)


class _Snapshot(Collector):
    def __init__(
        self, model: str, dialect: Dialect, engines: Sequence[Engine], past: Sequence[Engine], driver: Driver
    ) -> None:
        self._model, self._dialect, self._driver = model, dialect, driver
        self._engines, self._past = engines, past

    def describe(self) -> list[Any]:
        return []  # nothing else is registered, so names need no check

    def collect(self) -> Iterator[Any]:
        for family in self._dialect.families:
            yield self._family(family)
        yield from _own(self._driver, [*self._engines, *self._past])

    def _family(self, family: Family) -> Any:
        found: dict[tuple[tuple[str, str], ...], list[Value]] = {}
        added_up = family.kind != "gauge" and (self._dialect.one_server or not family.of_engine)
        for engine in [*self._engines, *(self._past if added_up else ())]:
            labels = self._dialect.labels(self._model, engine, family.of_engine)
            for values, value in family.read(engine):
                own = dict(zip(family.labels, values, strict=True))
                found.setdefault(tuple({**labels, **own}.items()), []).append(value)
        named = [name for name, _ in next(iter(found))] if found else []
        name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        made: Any = _CLASSES[family.kind](name, family.text, labels=named)
        for which, samples in found.items():
            _add(made, [value for _, value in which], _merged(samples, family.averaged), self._dialect.lazy)
        return made


_CLASSES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _merged(values: list[Value], averaged: bool) -> Value:
    first = values[0]
    if isinstance(first, Histogram):
        return first.and_others(value for value in values[1:] if isinstance(value, Histogram))
    total = sum(value for value in values if not isinstance(value, Histogram))
    return total / len(values) if averaged else total


def _add(family: Any, labels: list[str], value: Value, lazy: bool) -> None:
    if isinstance(value, Histogram):
        if value.count or not lazy:
            family.add_metric(labels, buckets=value.buckets(), sum_value=value.total)
    elif value or not lazy or family.type == "gauge":
        family.add_metric(labels, value)


def _own(driver: Driver, engines: Sequence[Engine]) -> Iterator[Any]:
    """Return the metrics of the simulation itself."""
    late = GaugeMetricFamily(
        "servesim_late_seconds", "Most by which this machine was late, in simulated seconds.", labels=["window"]
    )
    late.add_metric(["run"], driver.late.run_ns / NS)
    late.add_metric(["minute"], driver.late.lately_ns / NS)
    yield late
    yield GaugeMetricFamily("servesim_speed", "Simulated seconds per second.", value=driver.speed)
    now = GaugeMetricFamily("servesim_simulated_seconds", "Simulated time.", value=driver.now_ns() / NS)
    yield now
    gpu_ns = sum(engine.counts.gpu_ns for engine in engines)
    extrapolated_ns = sum(engine.counts.extrapolated_ns for engine in engines)
    yield GaugeMetricFamily(
        "servesim_extrapolated_share",
        "Share of the GPU time that comes from extrapolation beyond measured kernels.",
        value=extrapolated_ns / gpu_ns if gpu_ns else 0.0,
    )
