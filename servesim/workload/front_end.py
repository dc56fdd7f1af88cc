"""The front end of a server: API processes that receive requests and stream answers.

An API process (one of vLLM's `--api-server-count`) does one thing at a time: it handles HTTP for a request, tokenizes
the prompt, detokenizes the output, and streams the text. Prompts are handled first come, first served, each by the
process that becomes free first. Streaming answers takes up part of each process's time:

- The work of an answer, split into pieces, falls due evenly over its decoding, which is assumed to take TOKEN_NS per
  token. This depends only on facts known when the request arrives, so arrivals depend only on the requests sent,
  whatever the mode and the process.
- A process alternates between prompts and due answer work. Before each prompt it does all the answer work that is due,
  but spends no more time on it than the prompt itself takes, because an answer that falls behind has its chunks merged
  (vLLM's RequestOutputCollector), which is why servers stream more tokens per second than a process could send chunks
  (29,000 measured; InferenceX, MiniMax-M2.5 on two B300, vLLM 0.19). So the front end caps the rate of a burst of short
  prompts, but not that of long answers.
- The time that a chunk waits behind others is not added to token times; `out_ns` is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

from servesim.contracts.request import Request
from servesim.workload.workload import Workload

TOKEN_NS = 20_000_000
"""Assumed time between an answer's tokens, used to schedule its chunks. It affects only when chunks fall due, not the
amount of work or the maximum rate."""
PIECES = 4
"""Number of pieces into which an answer's work is split; they fall due one after another."""


@dataclass(frozen=True)
class FrontTerms:
    """Time costs of a front end, in ns."""

    in_ns: int = 0
    """Latency from the client to the queue, in addition to the work below; no process is busy during it."""
    out_ns: int = 0
    """Latency from the engine to the client."""
    request_ns: float = 0.0
    """Work per request."""
    token_ns: float = 0.0
    """Work per prompt token."""
    chunk_ns: float = 0.0
    """Work per answer chunk."""
    processes: int = 1
    stream_interval: int = 1
    """Tokens per chunk."""

    def prompt_ns(self, prompt_len: int) -> int:
        """Return the work required before a prompt of `prompt_len` tokens reaches the queue."""
        return round(self.request_ns + self.token_ns * prompt_len)

    def answer_ns(self, output_len: int) -> int:
        """Return the work of streaming an answer of `output_len` tokens if none of its chunks are merged."""
        return round(self.chunk_ns * -(-output_len // self.stream_interval))


class FrontEnd:
    """A workload seen through a server's front end. A request reaches the queue when a process has read it, and its
    client learns that it has ended `out_ns` after the engine finishes it."""

    def __init__(self, inner: Workload, terms: FrontTerms) -> None:
        self._inner = inner
        self._terms = terms
        self._works = bool(terms.request_ns or terms.token_ns or terms.chunk_ns)
        self._free = [(0, i) for i in range(terms.processes)]
        """A heap of (time at which a process finishes the prompts received so far, process number)."""
        self._answers: list[list[tuple[int, int]]] = [[] for _ in self._free]  # by process: (due, work)
        self._on_way: list[tuple[int, int, Request, int]] = []  # a heap ordered by arrival at the queue
        self._count = 0
        self._ahead = inner.open_loop  # if True, the clock stops only at queue arrivals, not at sends

    @property
    def open_loop(self) -> bool:
        return self._inner.open_loop

    def next_ns(self) -> int | None:
        due = self._inner.next_ns()
        if not self._works:
            return due + self._terms.in_ns if due is not None else None
        if self._ahead:
            self._read_ahead()
            return self._on_way[0][0] if self._on_way else None
        if not self._on_way:
            return due
        ready = self._on_way[0][0]
        return ready if due is None or ready <= due else due

    def pop(self) -> tuple[Request, int] | None:
        due = self._inner.next_ns()
        if self._on_way and (self._ahead or due is None or self._on_way[0][0] <= due):
            popped = heappop(self._on_way)
            return popped[2], popped[3]
        assert due is not None
        return self._read(due)

    def _read_ahead(self) -> None:
        """Read requests in the order in which they are sent until the first to reach the queue is known: with several
        processes, a later request may overtake an earlier one."""
        while True:
            due = self._inner.next_ns()
            if due is None:
                return
            if self._on_way and (len(self._free) == 1 or due + self._terms.in_ns >= self._on_way[0][0]):
                return
            self._read(due)

    def _read(self, due: int) -> tuple[Request, int] | None:
        """Receive the request sent at `due`; return None if the request has yet to reach the queue."""
        popped = self._inner.pop()
        if popped is None:
            return None
        request, output_len = popped
        parent = request.parent
        known = parent is not None and parent.tokenized
        if parent is not None:
            parent.tokenized = True
        ready = self._terms.in_ns + (self._handled(request, output_len, due, known) if self._works else due)
        if request.deadlines:
            request.deadlines = tuple(d._replace(ns=d.ns + ready - due) for d in request.deadlines)
        if not self._works:
            return request, output_len
        heappush(self._on_way, (ready, self._count, request, output_len))
        self._count += 1
        return None

    def _handled(self, request: Request, output_len: int, sent: int, known: bool) -> int:
        """Return the time at which a process has read a request sent at `sent`. If its prompt is `known` (the request
        is a further sample), only its answer costs work."""
        terms = self._terms
        free, which = self._free[0]
        answers, work = self._answers[which], 0 if known else terms.prompt_ns(request.prompt_len)
        start = done = max(free, sent)
        if answers:
            done = free
            while answers and answers[0][0] <= start:
                due, piece = heappop(answers)
                done = max(done, due) + piece
            done = min(max(done, start), start + work)
        ready = done + work
        heapreplace(self._free, (ready, which))
        answer = terms.answer_ns(output_len)
        if answer:
            pieces = min(PIECES, output_len)
            for i in range(1, pieces + 1):
                piece = answer * i // pieces - answer * (i - 1) // pieces
                heappush(answers, (ready + TOKEN_NS * output_len * i // pieces, piece))
        return ready

    def on_finish(self, request: Request, now: int) -> None:
        self._inner.on_finish(request, now + self._terms.out_ns)

    def future(self) -> list[Request] | None:
        return self._inner.future()

    def remaining(self) -> int:
        return self._inner.remaining() + len(self._on_way)
