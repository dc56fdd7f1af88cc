"""What a run leaves behind: columns of steps and requests, and the gaps between tokens.

Steps are recorded as runs: a row stands for `k` successive steps of one composition (k > 1 only for pure
decode, where contexts grow by one per step). Rows go out in chunks, so that long runs need not stay in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from servesim.engine.request import Request
from servesim.engine.row import Row
from servesim.engine.step import Late, Step

STEP_COLUMNS = (
    "replica",
    "step",  # id of the first step of the row; ids count from 0 per replica
    "k",  # steps in the row
    "planned_ns",  # of the first step
    "start_ns",  # of the first step
    "end_ns",  # of the last step
    "elapsed_ns",  # from the start, or the end of the replica's step before if later (pipeline stages), to the end
    "prefill_tokens",  # per step, like all counts below
    "prefill_pieces",
    "prefill_context",  # sum over pieces of the tokens in the KV cache before them
    "decode_count",
    "decode_context",  # sum of contexts attended in the first step; grows by decode_count per step
    "sampled",
    "padded_tokens",
    "drafts",  # draft tokens verified
    "accepted",  # of them accepted and delivered
    "preempted",  # requests preempted while the step was planned
    "bytes_moved",
    "gpu_ns",  # of all k steps
    "host_ns",  # of all k steps, hidden behind the GPU or not
    "kv_used",  # tokens in memory once the first step is planned: see contracts.kv.Usage
    "kv_internal",
    "kv_external",
    "kv_peak",  # tokens allocated (used + internal) once the last step is planned
    "kv_used_ns",  # integrals over the row's steps, token-nanoseconds
    "kv_internal_ns",
    # Shares of gpu_ns by origin in millionths; a fast-forwarded row has those of the step it was leapt from.
    "measured_ppm",
    "interpolated_ppm",
    "extrapolated_ppm",
    "roofline_ppm",
)
REQUEST_COLUMNS = (
    "row",
    "replica",
    "state",  # value of engine.request.State: FINISHED, REJECTED or ABORTED
    "prompt_len",
    "output_len",  # tokens delivered
    "max_tokens",
    "priority",
    "arrival_ns",
    "scheduled_ns",  # first; -1: never
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "hit_tokens",  # prefix tokens found in the cache when first admitted
    "num_preemptions",
    "recomputed_tokens",
    "sample",  # 0: the only one; of several samples (n > 1) from 1 to n, or -1: only filled the prefix cache for them
    "request",  # row of the request it is a sample of
)
"""A row for each output sequence; a request of n samples has n."""
LATE_COLUMNS = (
    "row",
    "ns",  # when the step ended that delivered, on the engine's clock
    "since_ns",  # when the request got tokens before; `ns` itself: never
    "tokens",
)
"""Deliveries out of the ordinary. Between its first and its last token every step of a request's replica that ends
delivers it one token, except where a row here says otherwise: none between `since_ns` and `ns`, then `tokens`."""
FLUSH_CELLS = 1 << 20
POOL_GAPS = 1 << 20

Rows = NDArray[np.int64]


class Table:
    """Rows of integers under fixed columns, kept in chunks or handed to a sink chunk by chunk."""

    def __init__(self, columns: tuple[str, ...], sink: Callable[[Rows], None] | None = None) -> None:
        self.columns = columns
        self._cells = array("q")
        self._chunks: list[Rows] = []
        self._sink = sink or self._chunks.append

    def add(self, row: tuple[int, ...]) -> None:
        """One row, in the order of the columns."""
        self._cells.extend(row)
        if len(self._cells) >= FLUSH_CELLS:
            self.flush()

    def extend(self, rows: Rows) -> None:
        """Many rows, handed on in the chunks in which they would be one by one."""
        chunk = -(-FLUSH_CELLS // len(self.columns))
        for first in range(0, len(rows), chunk):
            self._cells.frombytes(np.ascontiguousarray(rows[first : first + chunk]).tobytes())
            if len(self._cells) >= FLUSH_CELLS:
                self.flush()

    def flush(self) -> None:
        """Hand on what is buffered."""
        if self._cells:
            self._sink(np.frombuffer(self._cells, dtype=np.int64).reshape(-1, len(self.columns)))
            self._cells = array("q")

    def array(self) -> Rows:
        """All rows kept, as an array of shape (rows, columns)."""
        self.flush()
        return np.concatenate(self._chunks) if self._chunks else np.empty((0, len(self.columns)), dtype=np.int64)

    def column(self, name: str) -> Rows:
        """One column of all rows kept."""
        return self.array()[:, self.columns.index(name)]


class Recorder:
    """Collects the records of one simulation, all replicas together."""

    def __init__(
        self,
        step_sink: Callable[[Rows], None] | None = None,
        out_ns: int = 0,
        late_sink: Callable[[Rows], None] | None = None,
        request_sink: Callable[[Rows], None] | None = None,
        gap_sink: Callable[[Rows, Rows], None] | None = None,
    ) -> None:
        """`out_ns`: how long a token takes from the engine to the client, in the times of requests. What goes to a sink
        is not kept; `gap_sink` is told (ns ascending and distinct, how often)."""
        self._out_ns = out_ns
        self.steps = Table(STEP_COLUMNS, step_sink)
        self.deliveries = Table(LATE_COLUMNS, late_sink)
        self.requests = Table(REQUEST_COLUMNS, request_sink)
        self.reasons: dict[int, str] = {}
        """Finish reason or reason of rejection by row; the request sink may forget those it has been handed."""
        self.join = True
        """Whether decode steps that go on as the one before share its row."""
        self._last: dict[int, Row] = {}  # by replica: the row that steps to come may go on
        self._gap_ns = array("q")
        self._gap_count = array("q")
        self._pooled: list[tuple[Rows, Rows]] = []
        self._gap_sink = gap_sink or (lambda ns, count: self._pooled.append((ns, count)))

    def step(self, step: Step, replica: int) -> None:
        """A step is done."""
        usage = step.usage
        self.run(step, replica, 1, step.end_ns, step.gpu_ns, usage.used + usage.internal, 0, 0)

    def run(
        self, first: Step, replica: int, k: int, end_ns: int, gpu_ns: int, kv_peak: int, used_ns: int, internal_ns: int
    ) -> None:
        """k steps are done: `first` and those like it. `used_ns` and `internal_ns` are what the memory
        integrals have beyond the usage of the first step held throughout."""
        row = self._last.get(replica)
        ns = end_ns - (first.start_ns if row is None else max(first.start_ns, row.end_ns))
        usage = first.usage
        used_ns += usage.used * ns
        internal_ns += usage.internal * ns
        if row is not None:
            if self.join and row.goes_on(first):
                row.k += k
                row.end_ns = end_ns
                row.ns += ns
                row.gpu_ns += gpu_ns
                if kv_peak > row.kv_peak:
                    row.kv_peak = kv_peak
                row.used_ns += used_ns
                row.internal_ns += internal_ns
                return
            self.steps.add(row.cells(replica))
        self._last[replica] = Row(first, k, end_ns, ns, gpu_ns, kv_peak, used_ns, internal_ns)

    def close(self) -> None:
        """Nothing more will happen: the rows that might have gone on, one a replica, are complete."""
        for replica in sorted(self._last):
            self.steps.add(self._last[replica].cells(replica))
        self._last.clear()

    def gap(self, ns: int, count: int) -> None:
        """`count` pairs of successive tokens of a request lay `ns` apart."""
        self._gap_ns.append(ns)
        self._gap_count.append(count)
        if len(self._gap_ns) >= POOL_GAPS:
            self.pool()

    def gaps(self, ns: list[int], count: int) -> None:
        """The same for each element of `ns`."""
        self._gap_ns.extend(ns)
        self._gap_count.extend([count] * len(ns))
        if len(self._gap_ns) >= POOL_GAPS:
            self.pool()

    def late(self, now: int, late: list[Late]) -> None:
        """A step delivered at `now` otherwise than one token to a request that had one from the step before."""
        shared = count = 0  # requests held up together share a gap
        for row, since, tokens in late:
            self.deliveries.add((row, now, since, tokens))
            if tokens > 1:
                self.gap(0, tokens - 1)
            if since == now:
                continue
            if now - since != shared:
                if count:
                    self.gap(shared, count)
                shared, count = now - since, 0
            count += 1
        if count:
            self.gap(shared, count)

    def leave(self, request: Request, replica: int) -> None:
        """A request has finished or was rejected."""
        self.reasons[request.row] = request.reason
        out, parent = self._out_ns, request.parent
        self.requests.add(
            (
                request.row,
                replica,
                int(request.state),
                request.prompt_len,
                request.num_output_tokens,
                request.max_tokens,
                request.priority,
                request.arrival_ns,
                request.scheduled_ns,
                request.first_token_ns + out if request.first_token_ns >= 0 else -1,
                request.last_token_ns + out if request.last_token_ns >= 0 else -1,
                request.finished_ns + out,
                request.hit_tokens,
                request.num_preemptions,
                request.recomputed_tokens,
                request.sample,
                parent.number if parent is not None else request.row,
            )
        )

    def pooled(self, ns: Rows, count: Rows) -> None:
        """Gaps counted elsewhere."""
        self._gap_sink(ns, count)

    def pool(self) -> None:
        """Hand on the gaps seen since the last time, equal ones counted."""
        if self._gap_ns:
            self._gap_sink(*_counted(np.frombuffer(self._gap_ns, np.int64), np.frombuffer(self._gap_count, np.int64)))
            self._gap_ns, self._gap_count = array("q"), array("q")

    def itl(self) -> tuple[Rows, Rows]:
        """Gaps between successive tokens pooled over requests: (ns ascending and distinct, how often)."""
        self.pool()
        none = np.empty(0, dtype=np.int64)
        ns, count = (np.concatenate(column) for column in zip((none, none), *self._pooled, strict=True))
        return _counted(ns, count)


def _counted(values: Rows, counts: Rows) -> tuple[Rows, Rows]:
    distinct, where = np.unique(values, return_inverse=True)
    totals = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(totals, where, counts)
    return distinct, totals
