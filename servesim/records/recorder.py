"""Records of a run: steps and requests in tables, and the gaps between tokens.

Steps are recorded as runs: a row stands for `k` successive steps of the same composition (k > 1 only for pure decode,
where contexts grow by one per step). Rows are passed on in chunks, so that long runs need not stay in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from mypy_extensions import mypyc_attr

from servesim.contracts.cost import Sources, Times
from servesim.contracts.request import Request
from servesim.records.columns import LATE_COLUMNS, REQUEST_COLUMNS, STEP_COLUMNS, Rows
from servesim.records.draft_runs import LateRun, StepRun, late_rows, step_rows
from servesim.records.numbers import Numbers, counted
from servesim.records.row import Row
from servesim.records.step import Late, Step

FLUSH_CELLS = 1 << 20
POOL_GAPS = 1 << 20
STAGED = 1 << 14
PUT_OFF = 1 << 17

Build = Callable[[Any], tuple[Rows, list[int]]]
"""Function that returns the rows of several runs of steps, and the number of rows of each."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Table:
    """Rows of integers in fixed columns, kept in chunks or passed to a sink chunk by chunk. `build` makes the rows of
    runs that are put off."""

    def __init__(
        self, columns: tuple[str, ...], sink: Callable[[Rows], None] | None = None, build: Build | None = None
    ) -> None:
        self.columns = columns
        self.build = build
        self._runs: list[Any] = []  # put off
        self._places: list[int] = []  # of each of them: the number of staged cells before it
        self._cells_put_off = 0
        self._cells = Numbers()
        self._chunks: list[Rows] = []
        self._sink = sink or self._chunks.append
        self._most = -(-FLUSH_CELLS // len(columns)) * len(columns)
        self._width = len(columns)
        self._room = min(STAGED, self._most)  # cells that may be staged before they are packed

    def add(self, row: tuple[int, ...]) -> None:
        """Add one row, in the order of the columns."""
        staged = self._cells.staged
        staged += row
        self._room -= self._width
        if self._room <= 0:
            self._pack()

    def put_off(self, run: Any, most: int) -> None:
        """Add the rows of a run of steps, at most `most` of them, which are built later."""
        self._runs.append(run)
        self._places.append(len(self._cells.staged))
        self._cells_put_off += most * len(self.columns)
        if self._cells_put_off >= PUT_OFF:
            self._pack()

    def _pack(self) -> None:
        """Pack the staged cells and what was put off, in the order in which they were added, and pass on full
        chunks."""
        cells, width = self._cells, len(self.columns)
        first = len(cells.packed)
        cells.pack()
        if self._runs:
            assert self.build is not None
            rows, counts = self.build(self._runs)
            staged = np.frombuffer(cells.packed[first:], dtype=np.int64).reshape(-1, width)
            places = np.repeat(np.array(self._places, dtype=np.int64) // width, counts)
            del cells.packed[first:]
            cells.packed.frombytes(np.insert(staged, places, rows, axis=0).tobytes())
            self._runs, self._places, self._cells_put_off = [], [], 0
        self._hand_on()

    def _hand_on(self) -> None:
        """Pass on full chunks, which are the same however the rows were added."""
        cells, most = self._cells, self._most
        while len(cells.packed) >= most:
            self._sink(cells.take(most).reshape(-1, len(self.columns)))
        self._room = min(STAGED, most - len(cells.packed))

    def extend(self, rows: Rows) -> None:
        """Add many rows."""
        cells = self._cells
        if cells.staged or self._runs:
            self._pack()
        chunk = self._most // len(self.columns)
        for first in range(0, len(rows), chunk):
            cells.packed.frombytes(rows[first : first + chunk].tobytes())
            self._hand_on()

    def flush(self) -> None:
        """Pass on everything buffered."""
        self._pack()
        if self._cells.packed:
            self._sink(self._cells.take().reshape(-1, len(self.columns)))

    def array(self) -> Rows:
        """Return all rows kept, as an array of shape (rows, columns)."""
        self.flush()
        return np.concatenate(self._chunks) if self._chunks else np.empty((0, len(self.columns)), dtype=np.int64)

    def column(self, name: str) -> Rows:
        """Return one column of all rows kept."""
        return self.array()[:, self.columns.index(name)]


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorder:
    """Collector of the records of one simulation, all replicas together."""

    def __init__(
        self,
        step_sink: Callable[[Rows], None] | None = None,
        out_ns: int = 0,
        late_sink: Callable[[Rows], None] | None = None,
        request_sink: Callable[[Rows], None] | None = None,
        gap_sink: Callable[[Rows, Rows], None] | None = None,
    ) -> None:
        """Create a recorder. `out_ns`: time that a token takes from the engine to the client, included in the times of
        requests. Records passed to a sink are not kept; `gap_sink` receives (ns ascending and distinct, counts)."""
        self._out_ns = out_ns
        self.steps = Table(STEP_COLUMNS, step_sink, step_rows)
        self.deliveries = Table(LATE_COLUMNS, late_sink, late_rows)
        self.requests = Table(REQUEST_COLUMNS, request_sink)
        self.reasons: dict[int, str] = {}
        """Finish reason or rejection reason by row; the request sink may drop the reasons of rows it has received."""
        self.join = True
        """Whether decode steps that continue the previous one share its row."""
        self._last: dict[int, Row] = {}  # by replica: the row that later steps may extend
        self._gap_ns, self._gap_count = Numbers(), Numbers()
        self._single_gaps = Numbers()  # (ns, count) of each gap recorded by itself
        self._pooled: list[tuple[Rows, Rows]] = []
        self._gap_sink = gap_sink or (lambda ns, count: self._pooled.append((ns, count)))

    def step(self, step: Step, replica: int) -> None:
        """Record a finished step."""
        used, internal, _, _ = step.usage
        self.run(step, replica, 1, step.end_ns, step.gpu_ns, used + internal, 0, 0, step.sources)

    def run(
        self,
        first: Step,
        replica: int,
        k: int,
        end_ns: int,
        gpu_ns: int,
        kv_peak: int,
        used_ns: int,
        internal_ns: int,
        sources: Sources,
    ) -> None:
        """Record k finished steps: `first` and the following steps of the same composition. `used_ns` and `internal_ns`
        are the memory integrals minus what they would be if the usage of the first step were held throughout."""
        row, start_ns = self._last.get(replica), first.start_ns
        ns = end_ns - (start_ns if row is None or row.end_ns <= start_ns else row.end_ns)
        used, internal, _, _ = first.usage
        used_ns += used * ns
        internal_ns += internal * ns
        if row is not None:
            if self.join and row.continues_with(first):
                row.extend(k, end_ns, ns, gpu_ns, kv_peak, used_ns, internal_ns, sources)
                return
            self.steps.add(row.cells(replica))
        self._last[replica] = Row(first, k, end_ns, ns, gpu_ns, kv_peak, used_ns, internal_ns, sources)

    def verified(self, replica: int, run: StepRun) -> None:
        """Record steps with drafts, none of which continues another."""
        row = self._last.pop(replica, None)
        if row is not None:
            self.steps.add(row.cells(replica))
        self.steps.put_off(run, run.count)

    def open_row(self, replica: int) -> Row | None:
        """Return the row that decode steps may extend, or None if there is none."""
        return self._last.get(replica) if self.join else None

    def close(self) -> None:
        """Write the last row of each replica, because no further steps follow."""
        for replica in sorted(self._last):
            self.steps.add(self._last[replica].cells(replica))
        self._last.clear()

    def gap(self, ns: int, count: int) -> None:
        """Record `count` gaps of `ns` between successive tokens of a request."""
        staged = self._single_gaps.staged
        staged += (ns, count)
        if len(staged) >= STAGED:
            self._pack_gaps()

    def gaps(self, ns: Times, count: int) -> None:
        """Record `count` gaps for each element of `ns`."""
        if isinstance(ns, list):
            self._gap_ns.staged += ns
            self._gap_count.staged += [count] * len(ns)
            full = len(self._gap_ns.staged) >= STAGED
        else:
            self._gap_ns.packed.frombytes(ns.tobytes())
            self._gap_count.packed += array("q", (count,)) * len(ns)
            full = len(self._gap_ns.packed) >= POOL_GAPS
        if full:
            self._pack_gaps()

    def _pack_gaps(self) -> None:
        for numbers in (self._gap_ns, self._gap_count, self._single_gaps):
            numbers.pack()
        if len(self._gap_ns.packed) + len(self._single_gaps.packed) >= POOL_GAPS:
            self.pool()

    def late(self, now: int, late: list[Late]) -> None:
        """Record the deliveries of a step at `now`, except deliveries of one token to requests that also got a token
        from the previous step."""
        shared = count = at_once = 0  # requests delayed together share a gap
        for row, since, tokens in late:
            self.deliveries.add((row, now, since, tokens))
            at_once += tokens - 1
            if since == now:
                continue
            if now - since != shared:
                if count:
                    self.gap(shared, count)
                shared, count = now - since, 0
            count += 1
        if at_once:
            self.gap(0, at_once)
        if count:
            self.gap(shared, count)

    def late_together(self, now: int, since: int, rows: list[int]) -> None:
        """Record one token each, delivered at `now`, for requests whose previous tokens were delivered at `since`,
        before the last step."""
        late = np.empty((len(rows), len(LATE_COLUMNS)), dtype=np.int64)
        late[:, 0], late[:, 1], late[:, 2], late[:, 3] = rows, now, since, 1
        self.deliveries.extend(late)
        self.gap(now - since, len(rows))

    def deliver(self, run: LateRun, gaps: list[int], at_once: int) -> None:
        """Record the deliveries of steps, whose ends are `gaps` ns apart; in total, they deliver `at_once` more tokens
        than one per request and step."""
        if at_once:
            self.deliveries.put_off(run, len(run.gains))
            self.gap(0, at_once)
        self.gaps(gaps, len(run.rows))

    def leave(self, request: Request, replica: int) -> None:
        """Record a request that has finished or was rejected."""
        self.reasons[request.row] = request.reason
        out, parent = self._out_ns, request.parent
        first = request if request.leg is None else request.leg
        self.requests.add(
            (
                request.row,
                replica,
                int(request.state),
                request.prompt_len,
                request._num_tokens - request.prompt_len,
                request.max_tokens,
                request.priority,
                request.arrival_ns,
                first.scheduled_ns,
                request.first_token_ns + out if request.first_token_ns >= 0 else -1,
                request._last_token_ns + out if request._last_token_ns >= 0 else -1,
                request.finished_ns + out,
                first.hit_tokens,
                request.num_preemptions,
                request.recomputed_tokens,
                request.sample,
                parent.number if parent is not None else request.row,
            )
        )

    def pooled(self, ns: Rows, count: Rows) -> None:
        """Record gaps that were counted elsewhere."""
        self._gap_sink(ns, count)

    def pool(self) -> None:
        """Pass on the gaps recorded since the last call, as distinct values with counts."""
        for numbers in (self._gap_ns, self._gap_count, self._single_gaps):
            numbers.pack()
        single = self._single_gaps.take().reshape(-1, 2)
        ns = np.concatenate((single[:, 0], self._gap_ns.take()))
        if len(ns):
            self._gap_sink(*counted(ns, np.concatenate((single[:, 1], self._gap_count.take()))))

    def itl(self) -> tuple[Rows, Rows]:
        """Return gaps between successive tokens pooled over requests: (ns ascending and distinct, counts)."""
        self.pool()
        none = np.empty(0, dtype=np.int64)
        ns, count = (np.concatenate(column) for column in zip((none, none), *self._pooled, strict=True))
        return counted(ns, count)
