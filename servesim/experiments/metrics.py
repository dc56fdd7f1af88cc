"""The numbers that comparisons, sweeps and `--require` ask of a run, each declared once: name, unit, which way is
better, how it is called in sentences, its value over a window of the run, and its value in the run's summary.

Names are those of servesim.metrics: `ttft_p99`, `tpot_mean`, `output_throughput`, `slo_attainment`, ....
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.errors import UserError, suggest
from servesim.experiments.run_metrics import (
    SECOND,
    Run,
    Window,
    good,
    output_tokens,
    per,
    share,
    statistic,
    tokens,
    usd,
)
from servesim.metrics.custom import Function, is_custom, load_metric, value_of
from servesim.parsing import listed

Summary = Mapping[str, Any]
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E", "ntpot": "latency per token", "queue_time": "queue time"}
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Metric:
    """A metric."""

    name: str
    unit: str
    better: str
    """lower or higher."""
    scale: str
    """ratio: changes are relative; difference: of shares and counts, which may be 0, changes are absolute."""
    part: Callable[[Run, Window], float]
    """Return its value over a window of a run; NaN if nothing there has one."""
    whole: Callable[[Summary], float | None]
    """Return its value by the summary of a run; None if there is none."""
    label: str = ""
    """Its name in tables and sentences; empty: its name with blanks."""
    latency: bool = False
    """Grows without end in an unstable run."""

    def document(self) -> dict[str, Any]:
        """Return what a document of an experiment says of it."""
        return {key: getattr(self, key) for key in ("name", "unit", "better", "scale", "latency")}


def _latency(name: str, stat: str) -> Metric:
    def part(run: Run, window: Window) -> float:
        return statistic(run.latency_ms(name)[window.rows], stat)

    def whole(summary: Summary) -> float | None:
        value: float | None = (summary["latency_ms"][name] or {}).get(stat)
        return value

    return Metric(f"{name}_{stat}", "ms", "lower", "ratio", part, whole, f"{LATENCIES[name]} {stat}", latency=True)


def _in(section: str, name: str) -> Callable[[Summary], float | None]:
    """Return what looks up a figure in a section of a summary, which may be missing."""

    def whole(summary: Summary) -> float | None:
        value: float | None = (summary[section] or {}).get(name)
        return value

    return whole


def _preemptions(summary: Summary) -> float | None:
    arrived = summary["requests"]["arrived"]
    return summary["engine"]["preemptions"] / arrived if arrived else None


def _flow(name: str, amount: Callable[[Run, Window], float]) -> Metric:
    def part(run: Run, window: Window) -> float:
        return per(amount(run, window), window.ns / SECOND)

    unit = "requests/s" if name.startswith("request") else "tokens/s"
    return Metric(name, unit, "higher", "ratio", part, _in("throughput", name))


def _price(name: str, label: str, amount: Callable[[Run, Window], float]) -> Metric:
    def part(run: Run, window: Window) -> float:
        return per(usd(run, window) * 1e6, amount(run, window))

    return Metric(name, "$", "lower", "ratio", part, _in("price", name), label)


METRICS = {
    metric.name: metric
    for metric in (
        *(_latency(name, stat) for name in LATENCIES for stat in STATISTICS),
        _flow("request_throughput", lambda run, window: window.ended(run, run.done)),
        _flow("output_throughput", output_tokens),
        _flow("total_token_throughput", tokens),
        Metric(
            "request_goodput",
            "requests/s",
            "higher",
            "difference",
            lambda run, window: per(window.ended(run, good(run)), window.ns / SECOND),
            _in("goodput", "request_goodput"),
            "goodput",
        ),
        Metric(
            "slo_attainment",
            "share",
            "higher",
            "difference",
            lambda run, window: per(float(good(run)[window.rows].sum()), len(window.rows)),
            _in("goodput", "slo_attainment"),
            "SLO attainment",
        ),
        Metric(
            "hit_rate",
            "share",
            "higher",
            "difference",
            lambda run, window: share(run, window, "hit_tokens", "prompt_len"),
            _in("prefix_cache", "hit_rate"),
        ),
        Metric(
            "preemptions_per_request",
            "",
            "lower",
            "difference",
            lambda run, window: share(run, window, "num_preemptions"),
            _preemptions,
        ),
        _price("usd_per_million_tokens", "price per M tokens", tokens),
        _price("usd_per_million_output_tokens", "price per M output tokens", output_tokens),
    )
}
DEFAULTS = (
    "ttft_mean",
    "ttft_p99",
    "tpot_mean",
    "tpot_p99",
    "e2el_mean",
    "e2el_p99",
    "output_throughput",
    "usd_per_million_tokens",
)
SLO_DEFAULTS = ("slo_attainment", "request_goodput")
_OWN: dict[str, Function] = {}
"""Metrics of the user's own, by name; they are among METRICS, too."""


def metric_label(name: str) -> str:
    """Return a metric's name in tables and sentences."""
    return (METRICS[name].label if name in METRICS else "") or name.replace("_", " ")


def metrics_of(names: Sequence[Any] | str | None, slo: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics asked for; by default the usual ones, and those of the SLO if there is one."""
    if names is None:
        names = (*DEFAULTS, *(SLO_DEFAULTS if slo else ()))
    names = listed("metrics", names) if isinstance(names, str) else list(names)
    names = [_known(name) if is_custom(name) else name for name in names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"metrics: {twice} is given twice")
    for name in names:
        if name not in METRICS:
            raise UserError(f"unknown metric {name!r}{suggest(name, METRICS)}")
        if name in SLO_DEFAULTS and not slo:
            raise UserError(f"metric {name} needs an SLO, such as --slo ttft:500,tpot:50")
    return [METRICS[name] for name in names]


def _known(metric: Any) -> str:
    """Make a metric of the user's own one of METRICS; return its name. UserError if that is taken."""
    name, function = load_metric(metric)
    if name in METRICS and name not in _OWN:
        raise UserError(f"metric {name}: servesim has one of this name; give the function another")
    better = getattr(function, "better", "lower")
    if better not in ("lower", "higher"):
        raise UserError(f'metric {name}: better is {better!r}, must be "lower" or "higher"')

    def part(run: Run, window: Window) -> float:
        return value_of(name, function, run.table(window.rows), run.summary)

    def whole(summary: Summary) -> float | None:
        value: float | None = summary.get("custom_metrics", {}).get(name)
        return value

    METRICS[name] = Metric(name, str(getattr(function, "unit", "")), better, "difference", part, whole)
    _OWN[name] = function
    return name


def summary_values(summary: Summary) -> dict[str, float | None]:
    """Return each metric of a whole run, those of the user's own that it was asked for among them."""
    return {**{name: metric.whole(summary) for name, metric in METRICS.items()}, **summary.get("custom_metrics", {})}
