"""Metrics of requests: latencies, throughput, SLOs. Definitions follow common usage, as in vLLM.

t_s: arrival; t_1, t_n: first and last output token; n: output tokens; E2E = t_n - t_s. A request with several samples
counts once (servesim.metrics.samples); n is then the length of the longest sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.request import State
from servesim.metrics.distribution import Numbers, describe
from servesim.metrics.load import Load, load_of
from servesim.metrics.samples import numbers_of, reasons_of, requests_of
from servesim.records.columns import REQUEST_COLUMNS, Rows

MS = 1e6
SECOND = 1e9
ALL = "all limits"
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""Weights of tokens in a tenant's service, as in VTC (Sheng et al., OSDI'24): outputs cost more than inputs."""

Limits = Mapping[str, float] | Mapping[str, NDArray[np.float64]]
"""Limits in milliseconds by metric: either one value for all requests or one value per completed request."""
Stats = dict[str, float] | None


class Service(NamedTuple):
    """Tokens and requests that were served to clients, and those that were not."""

    given: float
    """Weighted tokens of the answers and their prompts."""
    refused: float
    """Weighted tokens of the requests without any successful attempt: their prompts and output caps."""
    answers: int
    seconds: float
    """Sum over answers of the time per token (E2E / n)."""


class Part(Protocol):
    """Source from which the figures of some requests are computed: their records, or sums over streamed records."""

    def total(self, name: str) -> int:
        """Return one of TOTALS."""

    def latency_ms(self, name: str) -> Stats:
        """Return the statistics of one of LATENCIES, or None if there are no values."""

    def met(self, limits: Limits) -> dict[str, int]:
        """Return the number of completed requests within each limit (value <= limit), and within all of them (ALL)."""

    def service(self, rows: int) -> Service:
        """Return the amounts served and not served; `rows`: number of requests in the trace."""

    @property
    def duration_ns(self) -> int:
        """Time from the first arrival to the last token of all requests, including the drain at the end."""


class Requests(Part, Protocol):
    """The figures of all requests of a run."""

    def why(self, ended: State) -> dict[str, int]:
        """Return the number of requests that ended in state `ended`, by reason."""

    def max_concurrency(self) -> int:
        """Return the maximum number of requests in the system at the same time, counting only requests that completed;
        at the same instant, departures precede arrivals."""

    def lookups(self, count: int) -> list[tuple[int, int]]:
        """Return (prompt tokens, how many of them were found in the cache) for the last `count` admitted requests, in
        order of admission."""

    def load(self) -> Load | None:
        """Return the numbers of requests waiting and in the system over the arrival span, or None if all requests
        arrive at the same time."""


@dataclass(frozen=True)
class RequestColumns:
    """The request records as named columns, in order of trace row; latencies are in nanoseconds, for completed
    requests."""

    table: dict[str, NDArray[np.int64]]
    done: NDArray[np.bool_]
    """Mask of completed requests; the latencies below have one entry for each of them."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Reason why each request ended, by row."""
    sequences: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """The records of each output sequence: a request with n samples has n."""

    @classmethod
    def of(cls, rows: Rows, reasons: Mapping[int, str] | None = None) -> RequestColumns:
        """Build the columns from the recorder's table, whose rows may be in any order."""
        rows = rows[np.argsort(rows[:, REQUEST_COLUMNS.index("row")], kind="stable")]
        sequences = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(REQUEST_COLUMNS)}
        table = requests_of(sequences)
        return cls(table, table["state"] == State.FINISHED, reasons_of(sequences, reasons or {}), sequences)

    def __len__(self) -> int:
        return len(self.done)

    def completed(self, column: str) -> NDArray[np.int64]:
        """Return one recorded column of the completed requests."""
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
        """(E2E - TTFT) / (n - 1), or 0 if n <= 1, which is the value that SLOs use for such requests."""
        gaps = self.completed("longest_output_len") - 1
        return np.where(gaps > 0, (self.e2el - self.ttft) / np.maximum(gaps, 1), 0.0)

    @property
    def ntpot(self) -> NDArray[np.float64]:
        """E2E / n."""
        return self.e2el / np.maximum(self.completed("longest_output_len"), 1)

    @property
    def queue_time(self) -> NDArray[np.int64]:
        """Time from t_s until the request is first scheduled."""
        return self.completed("scheduled_ns") - self.completed("arrival_ns")

    @property
    def duration_ns(self) -> int:
        """Time from the first arrival to the last token of all requests, including the drain at the end."""
        if not self.done.any():
            return 0
        return int(self.completed("last_token_ns").max() - self.table["arrival_ns"].min())

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> RequestColumns:
        """Return some of the records, by a mask or by their indices."""
        table = {name: column[which] for name, column in self.table.items()}
        mine = np.isin(numbers_of(self.sequences), table["row"])
        sequences = {name: column[mine] for name, column in self.sequences.items()}
        return RequestColumns(table, self.done[which], self.reasons, sequences)

    def total(self, name: str) -> int:
        return TOTALS[name](self)

    def latency_ms(self, name: str) -> Stats:
        return describe(LATENCIES[name](self), MS)

    def met(self, limits: Limits) -> dict[str, int]:
        within = {name: getattr(self, name) <= limit * MS for name, limit in limits.items()}
        within[ALL] = np.logical_and.reduce([*within.values(), np.ones(int(self.done.sum()), dtype=np.bool_)])
        return {name: int(ok.sum()) for name, ok in within.items()}

    def why(self, ended: State) -> dict[str, int]:
        rows = self.table["row"][self.table["state"] == ended].tolist()
        return dict(sorted(Counter(self.reasons[row] for row in rows).items()))

    def max_concurrency(self) -> int:
        return most_at_once(self.completed("arrival_ns"), self.completed("last_token_ns"))

    def lookups(self, count: int) -> list[tuple[int, int]]:
        t = self.sequences
        last = np.lexsort((t["row"], t["scheduled_ns"]))
        last = last[looked_up(self)[last]][-count:]
        return list(zip(t["prompt_len"][last].tolist(), t["hit_tokens"][last].tolist(), strict=True))

    def service(self, rows: int) -> Service:
        table, done = self.table, self.done
        request = table["row"] % rows
        given = INPUT_WEIGHT * table["prompt_len"][done] + OUTPUT_WEIGHT * table["output_len"][done]
        failed = ~np.isin(request, request[done])
        _, first = np.unique(request[failed], return_index=True)
        asked = (INPUT_WEIGHT * table["prompt_len"] + OUTPUT_WEIGHT * table["max_tokens"])[failed][first]
        seconds = self.ntpot / SECOND
        return Service(float(given.sum()), float(asked.sum()), len(seconds), float(seconds.sum()))

    def stays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return arrival, end of waiting and departure of each request that was not rejected."""
        table = self.table
        kept = np.flatnonzero(table["state"] != State.REJECTED)
        kept = kept[np.argsort(table["arrival_ns"][kept], kind="stable")]  # closed loops do not send in trace order
        leaves = np.where(table["state"] == State.ABORTED, table["finished_ns"], table["last_token_ns"])[kept]
        waits = np.where(table["scheduled_ns"] < 0, table["finished_ns"], table["scheduled_ns"])[kept]
        return table["arrival_ns"][kept], waits, leaves

    def load(self) -> Load | None:
        return load_of(*self.stays())


def _in_state(state: State) -> Callable[[RequestColumns], int]:
    return lambda c: int((c.table["state"] == state).sum())


def _of_completed(column: str) -> Callable[[RequestColumns], int]:
    return lambda c: int(c.completed(column).sum())


def looked_up(c: RequestColumns) -> NDArray[np.bool_]:
    """Return the sequences that were admitted on their own; a sequence forked from another shares its whole prompt and
    does no lookup."""
    table = c.sequences
    forked = (table["sample"] > 1) & (table["hit_tokens"] == table["prompt_len"])
    asked: NDArray[np.bool_] = (table["scheduled_ns"] >= 0) & ~forked
    return asked


def _of_admitted(column: str) -> Callable[[RequestColumns], int]:
    return lambda c: int(c.sequences[column][looked_up(c)].sum())


def _computed(c: RequestColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each completed sequence, the number of tokens whose keys and values it needs (the prompt and all
    outputs except the last), and the number of them that were cached."""
    done = c.sequences["state"] == State.FINISHED
    prompt, output, hit = (c.sequences[name][done] for name in ("prompt_len", "output_len", "hit_tokens"))
    return prompt + output - 1, hit


def _tokens(c: RequestColumns) -> int:
    length, hit = _computed(c)
    return int((length - hit).sum())


def _pairs(c: RequestColumns) -> int:
    length, hit = _computed(c)
    return int(((length * (length + 1) - hit * (hit + 1)) // 2).sum())


TOTALS: dict[str, Callable[[RequestColumns], int]] = {
    "arrived": len,
    "completed": _in_state(State.FINISHED),
    "rejected": _in_state(State.REJECTED),
    "aborted": _in_state(State.ABORTED),
    "input_tokens": _of_completed("prompt_len"),
    "output_tokens": _of_completed("output_len"),
    "output_sequences": _of_completed("samples"),
    "preemptions": lambda c: int(c.table["num_preemptions"].sum()),
    "recomputed_tokens": lambda c: int(c.table["recomputed_tokens"].sum()),
    "queried_tokens": _of_admitted("prompt_len"),
    "hit_tokens": _of_admitted("hit_tokens"),
    "useful_tokens": _tokens,
    "useful_pairs": _pairs,  # query-key pairs of the useful tokens
}
"""Integer totals of a run, each a sum over its requests."""
LATENCIES: dict[str, Callable[[RequestColumns], Numbers]] = {
    "ttft": lambda c: c.ttft,
    "tpot": lambda c: c.tpot[c.completed("longest_output_len") > 1],
    "e2el": lambda c: c.e2el,
    "ntpot": lambda c: c.ntpot,
    "queue_time": lambda c: c.queue_time,
}
"""Latencies in nanoseconds, of the completed requests that have them."""


def most_at_once(enter: NDArray[np.int64], leave: NDArray[np.int64]) -> int:
    """Return the maximum number of simultaneous stays; at the same instant, ends precede beginnings."""
    if not len(enter):
        return 0
    arrivals, departures = np.sort(enter), np.sort(leave)
    gone = np.searchsorted(departures, arrivals, side="right")
    return int((np.arange(1, len(arrivals) + 1) - gone).max())


def per(amount: float, of: float) -> float | None:
    """Return a ratio, or None if the divisor is zero."""
    return amount / of if of else None
