"""Metrics of requests: latencies, throughput, SLOs. Definitions in the field's (vLLM's) terms.

t_s: arrival; t_1, t_n: first and last output token; n: output tokens; E2E = t_n - t_s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.engine.recorder import REQUEST_COLUMNS, Rows
from servesim.engine.request import State
from servesim.errors import UserError, suggest
from servesim.metrics.distribution import describe, describe_counted

MS = 1e6
SECOND = 1e9
SLO_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class RequestColumns:
    """The request records as named columns, in order of trace row; latencies in nanoseconds of those completed."""

    table: dict[str, NDArray[np.int64]]
    done: NDArray[np.bool_]
    """Which requests completed; the latencies below have one entry for each of these."""

    @classmethod
    def of(cls, rows: Rows) -> RequestColumns:
        """From the recorder's table, whatever its order."""
        rows = rows[np.argsort(rows[:, REQUEST_COLUMNS.index("row")], kind="stable")]
        table = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(REQUEST_COLUMNS)}
        return cls(table, table["state"] == State.FINISHED)

    def __len__(self) -> int:
        return len(self.done)

    def completed(self, column: str) -> NDArray[np.int64]:
        """One recorded column of the completed requests."""
        return self.table[column][self.done]

    @property
    def ttft(self) -> NDArray[np.int64]:
        """t_1 - t_s."""
        return self.completed("first_token_ns") - self.completed("arrival_ns")

    @property
    def e2el(self) -> NDArray[np.int64]:
        """t_n - t_s."""
        return self.completed("last_token_ns") - self.completed("arrival_ns")

    @property
    def tpot(self) -> NDArray[np.float64]:
        """(E2E - TTFT) / (n - 1); 0 where n <= 1, which is what SLOs see of such requests."""
        gaps = self.completed("output_len") - 1
        return np.where(gaps > 0, (self.e2el - self.ttft) / np.maximum(gaps, 1), 0.0)

    @property
    def ntpot(self) -> NDArray[np.float64]:
        """E2E / n."""
        return self.e2el / np.maximum(self.completed("output_len"), 1)

    @property
    def queue_time(self) -> NDArray[np.int64]:
        """First scheduled - t_s."""
        return self.completed("scheduled_ns") - self.completed("arrival_ns")

    @property
    def duration_ns(self) -> int:
        """From the first arrival of all to the last token of all, the drain at the end included."""
        if not self.done.any():
            return 0
        return int(self.completed("last_token_ns").max() - self.table["arrival_ns"].min())


def latencies_ms(columns: RequestColumns, itl: tuple[Rows, Rows]) -> dict[str, dict[str, float] | None]:
    """Statistics of every latency in milliseconds. `itl` is (gap ns, how often), pooled over requests."""
    several = columns.completed("output_len") > 1
    return {
        "ttft": describe(columns.ttft, MS),
        "tpot": describe(columns.tpot[several], MS),
        "itl": describe_counted(*itl, MS),
        "e2el": describe(columns.e2el, MS),
        "ntpot": describe(columns.ntpot, MS),
        "queue_time": describe(columns.queue_time, MS),
    }


def throughput(columns: RequestColumns) -> dict[str, float | None]:
    """Completed requests, their output tokens and their input + output tokens per second of the duration."""
    seconds = columns.duration_ns / SECOND
    output = int(columns.completed("output_len").sum())
    total = output + int(columns.completed("prompt_len").sum())
    return {
        "request_throughput": per(int(columns.done.sum()), seconds),
        "output_throughput": per(output, seconds),
        "total_token_throughput": per(total, seconds),
    }


def counts(columns: RequestColumns, reasons: Mapping[int, str]) -> dict[str, Any]:
    """How many requests arrived and what became of them; reasons of rejection with their numbers."""
    state = columns.table["state"]

    def why(ended: State) -> dict[str, int]:
        return dict(sorted(Counter(reasons[row] for row in columns.table["row"][state == ended].tolist()).items()))

    return {
        "arrived": len(columns),
        "completed": int(columns.done.sum()),
        "rejected": int((state == State.REJECTED).sum()),
        "aborted": int((state == State.ABORTED).sum()),
        "finish_reasons": why(State.FINISHED),
        "rejection_reasons": why(State.REJECTED),
        "abort_reasons": why(State.ABORTED),
        "input_tokens": int(columns.completed("prompt_len").sum()),
        "output_tokens": int(columns.completed("output_len").sum()),
        "max_concurrency": max_concurrency(columns),
    }


def max_concurrency(columns: RequestColumns) -> int:
    """Most requests in the system at once; at one instant departures come before arrivals."""
    if not columns.done.any():
        return 0
    arrivals, departures = np.sort(columns.completed("arrival_ns")), np.sort(columns.completed("last_token_ns"))
    gone = np.searchsorted(departures, arrivals, side="right")
    return int((np.arange(1, len(arrivals) + 1) - gone).max())


def parse_slo(text: str) -> dict[str, float]:
    """`ttft:500,tpot:50,e2el:10000` (or with blanks between) as limits in milliseconds."""
    limits: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, colon, value = part.partition(":")
        if not colon:
            raise UserError(f"slo: {part!r} is not metric:milliseconds, such as ttft:500")
        if name in limits:
            raise UserError(f"slo: {name} is given twice")
        try:
            limits[name] = float(value)
        except ValueError:
            raise UserError(f"slo: {name} is {value!r}, must be a number of milliseconds") from None
    return check_slo(limits)


def check_slo(limits: dict[str, float]) -> dict[str, float]:
    """The same limits, in the order of SLO_METRICS, if they can be limits."""
    for name, value in limits.items():
        if name not in SLO_METRICS:
            raise UserError(f"slo: unknown metric {name!r}{suggest(name, SLO_METRICS)}")
        if not 0 < value < float("inf"):
            raise UserError(f"slo: {name} is {value:g}, must be a positive number of milliseconds")
    return {name: limits[name] for name in SLO_METRICS if name in limits}


def goodput(
    columns: RequestColumns, slo: Mapping[str, float], limits: Mapping[str, NDArray[np.float64]] | None = None
) -> dict[str, Any]:
    """Requests within every SLO (value <= limit): per second, and as a share of all arrivals. `limits`: those of each
    completed request in ms, where they are not all alike."""
    met = {name: getattr(columns, name) <= limit * MS for name, limit in (slo if limits is None else limits).items()}
    good = np.logical_and.reduce([*met.values(), np.ones(int(columns.done.sum()), dtype=np.bool_)])
    return {
        "slo_ms": dict(slo),
        "good_requests": int(good.sum()),
        "request_goodput": per(int(good.sum()), columns.duration_ns / SECOND),
        "slo_attainment": per(int(good.sum()), len(columns)),
        "attainment_by_metric": {name: per(int(ok.sum()), len(columns)) for name, ok in met.items()},
    }


def per(amount: float, of: float) -> float | None:
    """A ratio; None where there is nothing to divide by."""
    return amount / of if of else None
