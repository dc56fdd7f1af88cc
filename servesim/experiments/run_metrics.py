"""One number per run and metric, over the steady part of the run.

Requests that arrive in the first `warmup` of the arrival span (the server fills up) and in its last `cooldown` (no
later arrivals add load) are left out, and rates are taken over the time between. The window is fixed before anything is
seen, and the same for all that is compared. Names are those of servesim.metrics: `ttft_p99`, `tpot_mean`,
`output_throughput`, `slo_attainment`, ....
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.errors import UserError, suggest
from servesim.metrics.classes import class_limits
from servesim.metrics.custom import Function, is_custom, load_metric, value_of
from servesim.parsing import listed
from servesim.run.result_files import REQUESTS, SUMMARY, reading
from servesim.untrusted import read_json

LATENCIES = ("ttft", "tpot", "e2el", "ntpot", "queue_time")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
MS, SECOND = 1e6, 1e9

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Metric:
    """A metric: its name, its unit, and which way is better."""

    name: str
    unit: str
    better: str
    """lower or higher."""
    scale: str
    """ratio: changes are relative; difference: of shares and counts, which may be 0, changes are absolute."""
    latency: bool = False
    """Grows without end in an unstable run."""


_OTHERS = (
    Metric("request_throughput", "requests/s", "higher", "ratio"),
    Metric("output_throughput", "tokens/s", "higher", "ratio"),
    Metric("total_token_throughput", "tokens/s", "higher", "ratio"),
    Metric("request_goodput", "requests/s", "higher", "difference"),
    Metric("slo_attainment", "share", "higher", "difference"),
    Metric("hit_rate", "share", "higher", "difference"),
    Metric("preemptions_per_request", "", "lower", "difference"),
    Metric("usd_per_million_tokens", "$", "lower", "ratio"),
    Metric("usd_per_million_output_tokens", "$", "lower", "ratio"),
)
METRICS = {
    metric.name: metric
    for metric in (
        *(Metric(f"{name}_{stat}", "ms", "lower", "ratio", True) for name in LATENCIES for stat in STATISTICS),
        *_OTHERS,
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


LABELS = {
    "slo_attainment": "SLO attainment",
    "request_goodput": "goodput",
    "usd_per_million_tokens": "price per M tokens",
    "usd_per_million_output_tokens": "price per M output tokens",
}
_SHORT = dict(zip(LATENCIES, ("TTFT", "TPOT", "E2E", "latency per token", "queue time"), strict=True))


def metric_label(name: str) -> str:
    """Return a metric's name in tables and sentences."""
    latency, _, statistic = name.rpartition("_")
    plain = name.replace("_", " ")
    return LABELS.get(name) or (f"{_SHORT[latency]} {statistic}" if latency in _SHORT else plain)


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
    """Make a metric of the user's own one of METRICS; return its name. UserError where that is taken."""
    name, function = load_metric(metric)
    if name in METRICS and name not in _CUSTOM:
        raise UserError(f"metric {name}: servesim has one of this name; give the function another")
    better = getattr(function, "better", "lower")
    if better not in ("lower", "higher"):
        raise UserError(f'metric {name}: better is {better!r}, must be "lower" or "higher"')
    METRICS[name] = Metric(name, str(getattr(function, "unit", "")), better, "difference")
    _CUSTOM[name] = function
    return name


_CUSTOM: dict[str, Function] = {}
"""Metrics of the user's own, by name."""


def _custom(name: str, run: Run, rows: NDArray[np.int64]) -> float:
    import pandas as pd

    frame = pd.DataFrame(run.columns)
    if run.classes is not None:
        frame["class"] = list(run.classes)
    return value_of(name, _CUSTOM[name], frame.iloc[rows], run.summary)


@dataclass(frozen=True)
class Run:
    """The part of a result directory that experiments need."""

    summary: dict[str, Any]
    columns: Columns
    classes: Sequence[str] | None = None
    """The class of each request, where the trace has such labels."""

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Load a result directory as `servesim run --out` writes it."""
        import pyarrow.parquet as pq

        with reading(folder):
            table = pq.read_table(folder / REQUESTS).sort_by("row")  # a streamed run writes them as they leave
            names = [field.name for field in table.schema if field.type != "string"]
            columns = {name: table[name].to_numpy().astype(np.float64) for name in names}
            classes = table["class"].to_pylist() if "class" in table.column_names else None
            return cls(read_json(folder / SUMMARY), columns, classes)

    @property
    def requests(self) -> int:
        """Rows of the trace; retries are rows of their own beyond them."""
        return len(self.columns["row"]) - int(self.summary["requests"].get("retries") or 0)

    @property
    def unstable(self) -> bool:
        """Whether the queue was still growing when arrivals ended."""
        return bool(self.summary["stability"]["unstable"])

    @property
    def done(self) -> NDArray[np.bool_]:
        """Mask of the requests that completed."""
        return np.asarray(self.columns["state"] == State.FINISHED)

    def latency_ms(self, name: str) -> NDArray[np.float64]:
        """Return a latency of every request; NaN where it has none."""
        if name == "ntpot":
            return np.asarray(self.columns["e2el_ns"] / np.maximum(self.columns["output_len"], 1) / MS)
        return np.asarray(self.columns[f"{name}_ns"] / MS)


def check_window(warmup: float, cooldown: float) -> None:
    """Raise UserError unless both are shares that leave something between them."""
    if not (0 <= warmup < 1 and 0 <= cooldown < 1 and warmup + cooldown <= 0.9):
        raise UserError(f"warmup {warmup:g} and cooldown {cooldown:g}: shares of the arrivals, at most 0.9 together")


def measure(
    run: Run,
    metrics: Sequence[Metric],
    warmup: float,
    cooldown: float,
    rows: NDArray[np.int64] | None = None,
    part: tuple[int, int] | None = None,
) -> dict[str, float]:
    """Return the value of each metric; NaN where nothing in the window has one.

    `rows`, if given, are the requests to take instead of those of the window, repeats allowed (latencies only). `part`:
    first row and the one after the last of a part of the trace, which is measured from its first arrival to the first
    after it.
    """
    start, end, steady = _window(run, warmup, cooldown)
    if part is not None:
        start, end, steady = _part(run, part, start, end, steady)
    if rows is None:
        rows = np.flatnonzero(steady)
    values = {}
    for metric in metrics:
        if metric.latency:
            name, _, stat = metric.name.rpartition("_")
            values[metric.name] = _statistic(run.latency_ms(name)[rows], stat)
        elif metric.name in _CUSTOM:
            values[metric.name] = _custom(metric.name, run, rows)
        else:
            values[metric.name] = _OTHER[metric.name](run, rows, start, end)
    return values


def steady_rows(run: Run, warmup: float, cooldown: float) -> NDArray[np.int64]:
    """Return the rows of the requests in the window."""
    return np.flatnonzero(_window(run, warmup, cooldown)[2])


def _window(run: Run, warmup: float, cooldown: float) -> tuple[float, float, NDArray[np.bool_]]:
    """Return start and end in ns, and which requests arrive between; the end of the run without a cooldown."""
    arrival = run.columns["arrival_ns"]
    first, span = arrival.min(), np.ptp(arrival)
    start, stop = first + warmup * span, first + (1 - cooldown) * span
    end = stop if cooldown else run.columns["last_token_ns"].max()
    return float(start), float(end), np.asarray((arrival >= start) & (arrival <= stop))


def part_rows(run: Run, part: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which requests belong to these rows of the trace; retries have numbers beyond its end."""
    row = run.columns["row"] % run.requests
    return np.asarray((row >= part[0]) & (row < part[1]))


def _part(
    run: Run, part: tuple[int, int], start: float, end: float, steady: NDArray[np.bool_]
) -> tuple[float, float, NDArray[np.bool_]]:
    inside, arrival = part_rows(run, part) & steady, run.columns["arrival_ns"]
    after = arrival[part_rows(run, (part[1], run.requests))]
    if inside.any():
        start = max(start, float(arrival[inside].min()))
    if len(after):
        end = min(end, max(float(after.min()), start))
    return start, end, inside


def _statistic(values: NDArray[np.float64], stat: str) -> float:
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan")
    return float(values.mean() if stat == "mean" else np.percentile(values, float(stat[1:])))


def _between(times: NDArray[np.float64], start: float, end: float) -> NDArray[np.bool_]:
    return np.asarray((times >= start) & (times <= end))


def _output_tokens(run: Run, start: float, end: float) -> float:
    """Return the tokens delivered in the window; those of a request lie evenly between its first and its last."""
    c, done = run.columns, run.done
    first, last, count = c["first_token_ns"][done], c["last_token_ns"][done], c["output_len"][done]
    inside = np.clip(np.minimum(last, end) - np.maximum(first, start), 0, None)
    gaps = (count - 1) * inside / np.maximum(last - first, 1)
    return float((gaps + _between(first, start, end)).sum())


def _tokens(run: Run, start: float, end: float) -> float:
    c, done = run.columns, run.done
    prompts = c["prompt_len"][done & _between(c["first_token_ns"], start, end)].sum()
    return float(prompts) + _output_tokens(run, start, end)


def _good(run: Run) -> NDArray[np.bool_]:
    scenario = run.summary["scenario"]
    return within(run, scenario["slo"], scenario["slo_classes"])


def within(run: Run, slo: Mapping[str, float], classes: Mapping[str, Mapping[str, float]]) -> NDArray[np.bool_]:
    """Return which requests completed within every limit, of their class where that has its own; a request without a
    TPOT has one of 0."""
    good = run.done
    limits: Mapping[str, Any] = slo
    if classes and run.classes is not None:
        limits = class_limits(run.classes, np.arange(len(run.classes)), slo, classes)
    for name, limit in limits.items():
        good = good & (np.nan_to_num(run.latency_ms(name)) <= limit)
    return good


def usd_per_hour(run: Run, warmup: float = 0.0, cooldown: float = 0.0, part: tuple[int, int] | None = None) -> float:
    """Return what the GPUs that were up cost in the window, or in a part of the trace, by the hour ($); NaN where that
    has no length."""
    start, end, steady = _window(run, warmup, cooldown)
    if part is not None:
        start, end, _ = _part(run, part, start, end, steady)
    return _per(_usd(run, start, end) * 3600 * SECOND, end - start)


def _usd_of_replicas(run: Run, start: float, end: float) -> float:
    """Return the price ($) of the time between that each replica was up, by the price of its pool."""
    replicas, pools, usd = run.summary["replicas"], run.summary["pools"], 0.0
    first = float(run.columns["arrival_ns"].min())
    for name, pool in pools.items():
        own = [one for one in replicas if one["pool"] == name]
        begun = [first + one["up_from_s"] * SECOND for one in own]
        ended = [at + one["up_s"] * SECOND for at, one in zip(begun, own, strict=True)]
        inside = sum(max(min(b, end) - max(a, start), 0.0) for a, b in zip(begun, ended, strict=True)) / SECOND
        up_s = sum(one["up_s"] for one in own)
        usd += inside * pool["usd"] / up_s if up_s else 0.0
    return float(usd)


def _usd(run: Run, start: float, end: float) -> float:
    scenario = run.summary["scenario"]
    if scenario.get("scaler") is not None or scenario.get("pools"):
        return _usd_of_replicas(run, start, end)
    gpus = scenario["tp"] * scenario["pp"] * scenario.get("dp", 1) * scenario["replicas"]
    return float(gpus * scenario["usd_per_gpu_hour"] * (end - start) / SECOND / 3600)


def _per(amount: float, of: float) -> float:
    return float(amount / of) if of else float("nan")


_OTHER = {
    "request_throughput": lambda r, i, a, b: _per(
        float((r.done & _between(r.columns["last_token_ns"], a, b)).sum()), (b - a) / SECOND
    ),
    "output_throughput": lambda r, i, a, b: _per(_output_tokens(r, a, b), (b - a) / SECOND),
    "total_token_throughput": lambda r, i, a, b: _per(_tokens(r, a, b), (b - a) / SECOND),
    "request_goodput": lambda r, i, a, b: _per(
        float((_good(r) & _between(r.columns["last_token_ns"], a, b)).sum()), (b - a) / SECOND
    ),
    "slo_attainment": lambda r, i, a, b: _per(float(_good(r)[i].sum()), len(i)),
    "hit_rate": lambda r, i, a, b: _per(
        float(r.columns["hit_tokens"][i].sum()), float(r.columns["prompt_len"][i].sum())
    ),
    "preemptions_per_request": lambda r, i, a, b: _per(float(r.columns["num_preemptions"][i].sum()), len(i)),
    "usd_per_million_tokens": lambda r, i, a, b: _per(_usd(r, a, b) * 1e6, _tokens(r, a, b)),
    "usd_per_million_output_tokens": lambda r, i, a, b: _per(_usd(r, a, b) * 1e6, _output_tokens(r, a, b)),
}
