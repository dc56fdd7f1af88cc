"""Measurements over the steady part of a run, which is the same part for all runs that are compared.

Requests that arrive in the first `warmup` of the arrival span (the server fills up) and in its last `cooldown` (no
later arrivals add load) are left out, and rates are computed over the time in between. The window is fixed before any
results are seen. Its metrics are those of servesim.experiments.metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.errors import UserError
from servesim.metrics.classes import class_limits
from servesim.metrics.distribution import describe
from servesim.metrics.measured import Good
from servesim.metrics.requests import MS, SECOND, Stats
from servesim.run.prices import paid, reserved_of
from servesim.run.result_files import REQUESTS, SUMMARY, reading
from servesim.untrusted import read_json

if TYPE_CHECKING:
    from servesim.experiments.metrics import Metric

NONE_ARRIVES = "no request arrives in the steady window; increase --requests"
"""Error of a run whose window between warmup and cooldown is empty."""

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """The part of a result directory that experiments need."""

    summary: dict[str, Any]
    columns: Columns
    classes: Sequence[str] | None = None
    """Class of each request if the trace has class labels."""

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Load a result directory as written by `servesim run --out`."""
        import pyarrow.parquet as pq

        with reading(folder):
            table = pq.read_table(folder / REQUESTS).sort_by("row")  # streamed runs write rows in another order
            names = [field.name for field in table.schema if field.type != "string"]
            columns = {name: table[name].to_numpy().astype(np.float64) for name in names}
            classes = table["class"].to_pylist() if "class" in table.column_names else None
            return cls(read_json(folder / SUMMARY), columns, classes)

    @property
    def requests(self) -> int:
        """Number of rows of the trace. Retries have additional rows after these."""
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
        """Return one latency of every request, NaN for requests that do not have it."""
        if name == "ntpot":
            return np.asarray(self.columns["e2el_ns"] / np.maximum(self.columns["output_len"], 1) / MS)
        return np.asarray(self.columns[f"{name}_ns"] / MS)


@dataclass(frozen=True)
class Slice:
    """Part of a run that provides the inputs of metrics, as servesim.metrics.measured does for a whole run. `total`
    counts the requests that arrived in it, and `ended` counts the output delivered in it."""

    run: Run
    rows: NDArray[np.int64]
    """Rows of the requests that arrived in the part."""
    start: float
    """Start of the part in ns."""
    end: float
    """End of the part in ns."""
    whole: bool = True
    """Whether the part covers the whole measured run."""
    prefix_caching = True
    """True for all runs, since runs without a prefix cache simply have no hits."""

    @classmethod
    def of(cls, run: Run, warmup: float, cooldown: float, part: tuple[int, int] | None = None) -> Slice:
        """Return the steady window of a run, which ends when the run does if there is no cooldown. `part` is a range of
        rows of the trace: the first row and one past the last. The part is measured from its first arrival to the first
        arrival after it."""
        arrival = run.columns["arrival_ns"]
        first, span = arrival.min(), np.ptp(arrival)
        start, stop = first + warmup * span, first + (1 - cooldown) * span
        end = stop if cooldown else run.columns["last_token_ns"].max()
        inside = (arrival >= start) & (arrival <= stop)
        if part is not None:
            inside &= part_rows(run, part)
            after = arrival[part_rows(run, (part[1], run.requests))]
            if inside.any():
                start = max(start, arrival[inside].min())
            if len(after):
                end = min(end, max(after.min(), start))
        return cls(run, np.flatnonzero(inside), float(start), float(end), part is None)

    @property
    def ns(self) -> float:
        """Length of the part in ns."""
        return self.end - self.start

    @property
    def seconds(self) -> float:
        """Length of the part in seconds."""
        return self.ns / SECOND

    def total(self, name: str) -> float:
        """Return the sum of a quantity over the part's requests."""
        if name == "arrived":
            return len(self.rows)
        return float(self.run.columns[COLUMNS[name]][self.rows].sum())

    def ended(self, name: str) -> float:
        """Return the amount delivered in the part: completed requests, output tokens or computed prompt tokens."""
        c, done = self.run.columns, self.run.done
        if name == "completed":
            return self._with_last(done)
        first, last, count = c["first_token_ns"][done], c["last_token_ns"][done], c["output_len"][done]
        if name != "output_tokens":
            return float(c["prompt_len"][done][self.holds(first)].sum())
        inside = np.clip(np.minimum(last, self.end) - np.maximum(first, self.start), 0, None)
        gaps = (count - 1) * inside / np.maximum(last - first, 1)  # tokens are assumed to be evenly spaced
        return float((gaps + self.holds(first)).sum())

    def latency_ms(self, name: str) -> Stats:
        """Return the statistics of a latency, or None if there are no values."""
        values = self.run.latency_ms(name)[self.rows]
        return describe(values[~np.isnan(values)])

    @property
    def good(self) -> Good:
        """Counts of the requests that met the limits of the run's scenario."""
        scenario = self.run.summary["scenario"]
        which = within(self.run, scenario["slo"], scenario["slo_classes"])
        arrived_good = float(which[self.rows].sum())
        return Good(scenario["slo"], self._with_last(which), arrived_good, len(self.rows), {}, self.seconds)

    @property
    def usd(self) -> float:
        """Price of the GPUs that were up during the part."""
        scenario = self.run.summary["scenario"]
        if scenario.get("scaler") is not None or scenario.get("pools"):
            return _usd_of_replicas(self.run, self.start, self.end)
        return float(listed_usd_per_hour(scenario) * self.ns / SECOND / 3600)

    @property
    def usd_per_hour(self) -> float:
        """Hourly cost ($) of the GPUs that were up during the part, NaN if its length is 0."""
        return self.usd * 3600 * SECOND / self.ns if self.ns else float("nan")

    def holds(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the times within the part."""
        return np.asarray((times >= self.start) & (times <= self.end))

    def _with_last(self, which: NDArray[np.bool_]) -> float:
        """Return the number of requests in the mask whose last token lies within the part."""
        return float((which & self.holds(self.run.columns["last_token_ns"])).sum())

    def table(self) -> Any:
        """Return the part's requests as a DataFrame, for user-defined metrics."""
        import pandas as pd

        frame = pd.DataFrame(self.run.columns)
        if self.run.classes is not None:
            frame["class"] = list(self.run.classes)
        return frame.iloc[self.rows]


COLUMNS = {"queried_tokens": "prompt_len", "hit_tokens": "hit_tokens", "preemptions": "num_preemptions"}
"""Request columns, by the names in servesim.metrics.requests.TOTALS."""


def check_window(warmup: float, cooldown: float) -> None:
    """Raise UserError unless both are valid shares that leave a window between them."""
    if not (0 <= warmup < 1 and 0 <= cooldown < 1 and warmup + cooldown <= 0.9):
        raise UserError(
            f"warmup {warmup:g} and cooldown {cooldown:g}: must be shares of the arrivals, at most 0.9 in total"
        )


def measure(
    run: Run, metrics: Sequence[Metric], warmup: float, cooldown: float, part: tuple[int, int] | None = None
) -> dict[str, float]:
    """Return the value of each metric over the window, or over a part of the trace (`Slice.of`), NaN if there is
    none."""
    measured = Slice.of(run, warmup, cooldown, part)
    return {metric.name: metric.part(measured) for metric in metrics}


def part_rows(run: Run, part: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask of the requests that belong to a range of rows of the trace. Retries, whose row numbers lie beyond
    the trace's end, belong to the row of their original request."""
    row = run.columns["row"] % run.requests
    return np.asarray((row >= part[0]) & (row < part[1]))


def within(run: Run, slo: Mapping[str, float], classes: Mapping[str, Mapping[str, float]]) -> NDArray[np.bool_]:
    """Return a mask of the requests that completed within every limit (those of their class if it has its own). A
    missing TPOT counts as 0."""
    good = run.done
    limits: Mapping[str, Any] = slo
    if classes and run.classes is not None:
        limits = class_limits(run.classes, np.arange(len(run.classes)), slo, classes)
    for name, limit in limits.items():
        good = good & (np.nan_to_num(run.latency_ms(name)) <= limit)
    return good


def _usd_of_replicas(run: Run, start: float, end: float) -> float:
    """Return the cost ($) of the replicas between two times: the time each was up, at the price of its pool, or at that
    of the reserved GPUs that pools share and of those on demand."""
    replicas, pools, usd = run.summary["replicas"], run.summary["pools"], 0.0
    first = float(run.columns["arrival_ns"].min())
    prices = run.summary["scenario"].get("price") or {}
    shared: dict[str, list[tuple[float, float, float]]] = {}
    for name, pool in pools.items():
        own = [one for one in replicas if one["pool"] == name]
        begun = [first + one["up_from_s"] * SECOND for one in own]
        ended = [at + one["up_s"] * SECOND for at, one in zip(begun, own, strict=True)]
        up_s = sum(one["up_s"] for one in own)
        if prices and reserved_of(prices.get(pool["gpu"], 0.0)):
            gpus = round(pool["gpu_hours"] * 3600 / up_s) if up_s else 0
            shared.setdefault(pool["gpu"], []).extend((a, b, gpus) for a, b in zip(begun, ended, strict=True))
            continue
        inside = sum(max(min(b, end) - max(a, start), 0.0) for a, b in zip(begun, ended, strict=True)) / SECOND
        usd += inside * pool["usd"] / up_s if up_s else 0.0
    for gpu, ups in shared.items():
        if (reserved := reserved_of(prices[gpu])) is not None:
            usd += paid(reserved, ups, start, end) / SECOND / 3600
    return float(usd)


def listed_usd_per_hour(scenario: Mapping[str, Any]) -> float:
    """Return the hourly price of all GPUs of a run's scenario, whether or not they were up."""
    gpus: float = scenario["tp"] * scenario["pp"] * scenario.get("dp", 1) * scenario["replicas"]
    return gpus * float(scenario["usd_per_gpu_hour"])
