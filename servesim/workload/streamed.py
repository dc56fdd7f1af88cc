"""Replay of a trace that arrives in chunks: a row is in memory from shortly before it is sent until its request
leaves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from servesim.contracts.request import Request, SampleForm
from servesim.sentinels import NEVER
from servesim.workload.trace import Ints, Trace
from servesim.workload.workload import Clients, TraceWorkload


class StreamedWorkload(TraceWorkload):
    """TraceWorkload without sessions, retries, or oracles."""

    def __init__(
        self,
        chunks: Iterator[Trace],
        count: int,
        predict: Callable[[Trace, int], Ints],
        clients: Clients,
        form: SampleForm = "children",
        several: bool = False,
    ) -> None:
        """Begin a replay. `count` is the number of rows in all chunks; `predict` receives a chunk and the number of its
        first row. `several`: whether any request asks for several samples."""
        self._chunks = chunks
        self._predict = predict
        self._starts: list[int] = []  # first row of each chunk in memory
        self._traces: list[Trace] = []
        self._unread: list[int] = []  # per chunk, number of rows not yet forgotten
        self._in_flight: dict[int, int] = {}  # send time of each row some of whose samples have not left
        self._now = 0
        first = next(chunks)
        super().__init__(first, predict(first, 0), clients, form, count, several)
        self._remember(first, 0)

    def pop(self) -> tuple[Request, int]:
        popped = super().pop()
        request = popped[0]
        self._now = request.arrival_ns
        if request.parent is None:
            self._in_flight[request.row] = self._now
        else:
            self._in_flight.setdefault(request.parent.number, self._now)
        if self._next == self._end < self._count:
            first, chunk = self._end, next(self._chunks)
            self._further += len(self._samples.output_len) if self._samples is not None else 0
            self._window(chunk, self._predict(chunk, first), first)
            self._remember(chunk, first)
        return popped

    def on_finish(self, request: Request, now: int) -> None:
        outstanding = self._outstanding
        super().on_finish(request, now)
        if self._outstanding < outstanding:  # else there are more samples
            del self._in_flight[request.row if request.parent is None else request.parent.number]

    def future(self) -> list[Request] | None:
        return None

    def settled_ns(self) -> int:
        """Return a time before which every request sent has left."""
        if self._in_flight:
            return next(iter(self._in_flight.values()))  # rows are sent in time order
        return self._now if self._left else NEVER

    def in_flight(self, row: int) -> bool:
        """Return whether some samples of a row have not left."""
        return row in self._in_flight

    def texts(self, rows: Sequence[int]) -> dict[str, list[str]]:
        """Return the names and labels of the given rows, if the trace has them. The rows must not have been forgotten
        yet."""
        found: dict[str, list[str]] = {}
        for row in rows:
            chunk = bisect_right(self._starts, row) - 1
            trace, at = self._traces[chunk], row - self._starts[chunk]
            if trace.request_id is not None:
                found.setdefault("name", []).append(trace.request_id[at])
            for label, values in trace.labels.items():
                found.setdefault(label, []).append(values[at])
        return found

    def forget(self, rows: Sequence[int]) -> None:
        """Forget rows that no caller will need again."""
        for row in rows:
            self._unread[bisect_right(self._starts, row) - 1] -= 1
        gone = [i for i, left in enumerate(self._unread) if left == 0]
        for i in reversed(gone):
            del self._starts[i], self._traces[i], self._unread[i]

    def _remember(self, chunk: Trace, first: int) -> None:
        self._starts.append(first)
        self._traces.append(chunk)
        self._unread.append(len(chunk))
