"""Saved run in the form that figures need: columns, time series, and a sample of its steps."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.metrics.requests import SECOND
from servesim.run.result import Result
from servesim.run.result_files import REQUESTS, STEPS

if TYPE_CHECKING:
    from servesim.reports.priced import Priced

Column = NDArray[np.int64]
Series = NDArray[np.float64]
BINS = 300


class Run:
    """Columns of a result and values that figures derive from them. Times are in ns; series have one value per bin of
    `edges`."""

    def __init__(self, result: Result) -> None:
        self.summary: dict[str, Any] = result.summary
        self.scenario = result.scenario
        requests = result.columns_of(REQUESTS)
        self.names: list[str] | None = requests["name"].tolist() if "name" in requests else None
        self.requests = {name: column for name, column in requests.items() if column.dtype.kind in "if"}
        kinds = [kind for kind in ("class", "tenant") if kind in requests]
        self.labels: dict[str, NDArray[Any]] = {kind: requests[kind] for kind in kinds}
        self.steps: dict[str, Column] = result.columns_of(STEPS)
        self.done = self.requests["state"] == State.FINISHED

    @property
    def begin_ns(self) -> int:
        """First arrival, which is the start of the report's clock."""
        return int(self.requests["arrival_ns"].min()) if len(self.done) else 0

    @property
    def end_ns(self) -> int:
        """Last token or last step, whichever is later."""
        return max(int(self.requests["last_token_ns"].max(initial=1)), int(self.steps["end_ns"].max(initial=1)))

    def finished(self, column: str) -> Any:
        """Return one column of the completed requests."""
        return self.requests[column][self.done]

    @cached_property
    def edges(self) -> Series:
        """Bounds of the bins of all time series, in ns."""
        return np.linspace(self.begin_ns, max(self.end_ns, self.begin_ns + BINS), BINS + 1)

    @cached_property
    def clock_s(self) -> Series:
        """Centers of the bins, in seconds from the first arrival."""
        middles: Series = ((self.edges[1:] + self.edges[:-1]) / 2 - self.begin_ns) / SECOND
        return middles

    def present(self, enter: Column, leave: Column) -> Series:
        """Return the mean number of requests present in each bin."""

        def area(times: Column) -> Series:
            """Return, at every edge, the time integral of the number of `times` that have passed."""
            times = np.sort(times)
            passed = np.searchsorted(times, self.edges)
            sums = np.concatenate([[0.0], np.cumsum(times - self.edges[0])])
            inside: Series = passed * (self.edges - self.edges[0]) - sums[passed]
            return inside

        mean: Series = np.diff(area(enter) - area(leave)) / np.diff(self.edges)
        return np.maximum(mean, 0.0)

    @cached_property
    def waiting(self) -> Series:
        """Mean number of requests that had not been scheduled yet."""
        return self.waiting_of(np.ones(len(self.done), bool))

    @cached_property
    def waited_until(self) -> Column:
        """Time at which each request was first scheduled, or left without being scheduled; for a rejected request, its
        arrival."""
        arrival, scheduled = self.requests["arrival_ns"], self.requests["scheduled_ns"]
        until = np.where(scheduled < 0, self.requests["finished_ns"], scheduled)
        return np.where(self.requests["state"] == State.REJECTED, arrival, until)

    def waiting_of(self, rows: NDArray[np.bool_]) -> Series:
        """Return the mean number of the selected requests (a mask) that had not been scheduled yet."""
        return self.present(self.requests["arrival_ns"][rows], self.waited_until[rows])

    def mean_of(self, integrals: Column | Series) -> Series:
        """Return the mean over each bin of a quantity whose integral over each row of steps is given, summed over
        replicas; 0 when nothing runs."""
        steps, total = self.steps, np.zeros(BINS)
        for replica in np.unique(steps["replica"]):
            rows = np.flatnonzero(steps["replica"] == replica)
            rows = rows[np.argsort(steps["step"][rows], kind="stable")]
            ends = steps["end_ns"][rows]
            begins = ends - steps["elapsed_ns"][rows]
            whole = np.concatenate([[0.0], np.cumsum(integrals[rows], dtype=np.float64)])
            knots = np.stack([begins, ends], axis=1).ravel()
            sums = np.stack([whole[:-1], whole[1:]], axis=1).ravel()
            total += np.diff(np.interp(self.edges, knots, sums)) / np.diff(self.edges)
        return total

    @cached_property
    def batch(self) -> Series:
        """Mean number of sequences in a step over time, for all replicas together."""
        return self.mean_of((self.steps["decode_count"] + self.steps["prefill_pieces"]) * self.steps["elapsed_ns"])

    @cached_property
    def memory(self) -> dict[str, Series]:
        """KV memory as shares of the capacity of all replicas: used, internal, external."""
        capacity = self.summary["kv"]["capacity_tokens"] * self.scenario.replicas * self.scenario.dp
        external = self.steps["kv_external"] * self.steps["elapsed_ns"].astype(np.float64)
        parts = {"used": self.steps["kv_used_ns"], "internal": self.steps["kv_internal_ns"], "external": external}
        return {name: self.mean_of(integral) / capacity for name, integral in parts.items()}

    @cached_property
    def memory_peaks(self) -> Series | None:
        """Largest share of its KV memory that any replica had allocated in each bin, or None if pools differ in memory.
        A row of several steps counts at its last step, when it holds the most."""
        if self.summary["kv"]["peak_share"] is None:
            return None
        peaks = sum(self.memory.values(), np.zeros(BINS))  # average share: at most the fullest replica's
        bins = np.clip(np.searchsorted(self.edges, self.steps["end_ns"], side="left") - 1, 0, BINS - 1)
        np.maximum.at(peaks, bins, self.steps["kv_peak"] / self.summary["kv"]["capacity_tokens"])
        return peaks

    @cached_property
    def preempted(self) -> Series:
        """Number of preemptions in each bin."""
        steps = self.steps
        return np.histogram(steps["planned_ns"], self.edges, weights=steps["preempted"])[0].astype(np.float64)

    @cached_property
    def kinds(self) -> dict[str, NDArray[np.bool_]]:
        """Masks of the rows that are prefill, decode or mixed steps."""
        prefill, decode = self.steps["prefill_pieces"] > 0, self.steps["decode_count"] > 0
        return {"prefill": prefill & ~decode, "mixed": prefill & decode, "decode": decode & ~prefill}

    @cached_property
    def priced(self) -> Priced | None:
        """Sample of the run's steps, repriced operator by operator, or None if there are no steps. Raise UserError if
        they can no longer be priced."""
        from servesim.reports.priced import price_steps

        return price_steps(self) if len(self.steps["k"]) else None

    def sample(self, rows: Column, size: int) -> Column:
        """Return at most `size` of these step rows, evenly spaced in GPU time, so that each represents an equal part of
        it."""
        if len(rows) <= size:
            return rows
        spent = np.cumsum(self.steps["gpu_ns"][rows], dtype=np.float64)
        at = np.searchsorted(spent, (np.arange(size) + 0.5) * spent[-1] / size)
        chosen: Column = rows[np.unique(at)]
        return chosen
