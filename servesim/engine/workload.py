"""Where requests come from: arrivals of a trace, in time or in answer to what has finished."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from servesim.engine.request import Request
from servesim.trace import Ints, Trace


class Workload(Protocol):
    """A source of requests. Closed loops and conversations make new ones in `on_finish`."""

    def next_ns(self) -> int | None:
        """When the next request arrives; None: none is due (one may still follow from a finish)."""

    def pop(self) -> tuple[Request, int]:
        """The next request and its true output length. Called only when `next_ns()` is not None."""

    def on_finish(self, request: Request, now: int) -> None:
        """A client hears at `now` that a request has left (finished, rejected or aborted)."""

    def remaining(self) -> int:
        """Requests that have not arrived yet."""


class TraceWorkload:
    """Open-loop replay: every request of a trace arrives at its recorded time, whatever the server does."""

    def __init__(self, trace: Trace, predicted: Ints | None = None) -> None:
        """`predicted`: output tokens as policies are told them; None: their caps."""
        self._next = 0
        self._count = len(trace)
        self._ids = trace.request_id
        columns = (trace.arrival_ns, trace.prompt_len, trace.output_len, trace.max_tokens, trace.priority)
        self._arrival, self._prompt, self._output, self._cap, self._priority = (c.tolist() for c in columns)
        self._predicted = (trace.max_tokens if predicted is None else predicted).tolist()
        self._prefixes = Prefixes() if trace.content is not None else None
        self._content = trace.content

    def next_ns(self) -> int | None:
        return self._arrival[self._next] if self._next < self._count else None

    def pop(self) -> tuple[Request, int]:
        row = self._next
        self._next = row + 1
        content = None
        if self._content is not None and self._prefixes is not None:
            content = RunContent(row, self._content.runs(row), self._prefixes)
        request = Request(
            row,
            self._ids[row] if self._ids is not None else str(row),
            self._prompt[row],
            self._cap[row],
            self._arrival[row],
            self._priority[row],
            "",
            content,
            predicted_output_len=self._predicted[row],
        )
        return request, self._output[row]

    def on_finish(self, request: Request, now: int) -> None:
        """Open loop: the future is fixed."""
        return None

    def remaining(self) -> int:
        return self._count - self._next


class FrontEnd:
    """A workload seen through a server's front end: requests reach the queue `in_ns` after they were sent
    (HTTP, tokenizer), and clients hear of the end `out_ns` after the engine is done."""

    def __init__(self, inner: Workload, in_ns: int, out_ns: int) -> None:
        self._inner = inner
        self._in_ns = in_ns
        self._out_ns = out_ns

    def next_ns(self) -> int | None:
        due = self._inner.next_ns()
        return due + self._in_ns if due is not None else None

    def pop(self) -> tuple[Request, int]:
        return self._inner.pop()

    def on_finish(self, request: Request, now: int) -> None:
        self._inner.on_finish(request, now + self._out_ns)

    def remaining(self) -> int:
        return self._inner.remaining()


class Prefixes:
    """Numbers for distinct sequences of whole content runs, the same number for the same sequence."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, int], int] = {}

    def extend(self, prefix: int, run_length: int, content: int) -> int:
        """The sequence `prefix`, whose last run has `run_length` tokens, followed by a run of `content`."""
        return self._numbers.setdefault((prefix, run_length, content), len(self._numbers) + 1)


class RunContent:
    """A prompt as (content id, length) runs, followed by the request's own output.

    A prefix is known by the sequence of runs up to the one it ends in, and how far into that it reaches; so one
    table entry per run serves all block sizes. The output of row r is the content -(r + 1) wherever it
    appears, also inside a later prompt.
    """

    __slots__ = ("_ends", "_index", "_prefixes", "_row", "_runs", "_sequence")

    def __init__(self, row: int, runs: list[tuple[int, int]], prefixes: Prefixes) -> None:
        self._row = row
        self._runs = runs
        self._prefixes = prefixes
        self._ends: list[int] = []  # token at which run i ends
        self._sequence: list[int] = []  # number of the sequence of runs 0..i
        self._index = 0  # the run the last question ended in: questions mostly come in order

    def prefix_key(self, stop: int) -> Hashable:
        """See PromptContent."""
        i = self._index
        ends = self._ends
        if i and stop <= ends[i - 1]:
            i = 0
        while i >= len(ends) or ends[i] < stop:
            if i >= len(ends):
                self._open(i)
            else:
                i += 1
        self._index = i
        start = ends[i - 1] if i else 0
        return (self._sequence[i] << 32) | (stop - start)

    def _open(self, i: int) -> None:
        """Number the sequence that ends with run i (the one after the prompt is the output, without end)."""
        content, length = self._runs[i] if i < len(self._runs) else (-self._row - 1, 1 << 31)
        before, before_length = (self._sequence[i - 1], self._runs[i - 1][1]) if i else (0, 0)
        self._sequence.append(self._prefixes.extend(before, before_length, content))
        self._ends.append((self._ends[i - 1] if i else 0) + length)
