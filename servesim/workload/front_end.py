"""The front end of a server: API processes that take requests in and stream answers out.

An API process (vLLM's `--api-server-count` of them) does one thing at a time: it handles a request's HTTP, tokenizes
its prompt, turns tokens into text and streams them. A process serves prompts first come, first served; a request goes
to the process that is free first. Answers take their share of its time:

- The work of an answer, a chunk at a time, falls due evenly over its decoding, which is taken to be TOKEN_NS a token:
  what is known when the request comes, so that arrivals depend on nothing but what was sent, in any mode and process.
- A process does due work of answers in turn with prompts. Before a prompt it does all that is due, but for no longer
  than the prompt takes itself: an answer that is late has its chunks merged (vLLM's RequestOutputCollector), which is
  why servers stream more tokens a second than a process could send chunks (29,000 measured; InferenceX, MiniMax-M2.5
  on two B300, vLLM 0.19). So a burst of short prompts has a ceiling, and long answers have none.
- The delay of a chunk behind others is not added to the times of tokens; `out_ns` is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

from servesim.contracts.request import Request
from servesim.workload.workload import Workload

TOKEN_NS = 20_000_000
"""Time between an answer's tokens by which its chunks fall due. Only when they do depends on it: not how much work they
are, nor the ceiling."""
PIECES = 4
"""Parts of an answer's work, due one after the other."""


@dataclass(frozen=True)
class FrontTerms:
    """Times of a front end, in ns."""

    in_ns: int = 0
    """From the client to the queue, beyond the work below: no process is busy meanwhile."""
    out_ns: int = 0
    """From the engine to the client."""
    request_ns: float = 0.0
    """Work of a process for each request."""
    token_ns: float = 0.0
    """For each token of the prompt."""
    chunk_ns: float = 0.0
    """For each chunk of the answer."""
    processes: int = 1
    stream_interval: int = 1
    """Tokens of a chunk."""

    def prompt_ns(self, prompt_len: int) -> int:
        """Return the work before a prompt of this many tokens reaches the queue."""
        return round(self.request_ns + self.token_ns * prompt_len)

    def answer_ns(self, output_len: int) -> int:
        """Return the work of streaming an answer of this many tokens, none of its chunks merged."""
        return round(self.chunk_ns * -(-output_len // self.stream_interval))


class FrontEnd:
    """A workload seen through a server's front end: requests reach the queue when a process has read them, clients hear
    of the end `out_ns` after the engine is done."""

    def __init__(self, inner: Workload, terms: FrontTerms) -> None:
        self._inner = inner
        self._terms = terms
        self._works = bool(terms.request_ns or terms.token_ns or terms.chunk_ns)
        self._free = [(0, i) for i in range(terms.processes)]
        """A heap: when each process is done with the prompts that came so far, and its number."""
        self._answers: list[list[tuple[int, int]]] = [[] for _ in self._free]  # (due, work), by process
        self._on_way: list[tuple[int, int, Request, int]] = []  # a heap by the time they reach the queue
        self._count = 0
        self._ahead = inner.open_loop  # then the clock need not stop when one is sent, only when it reaches the queue

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
        """Read what is sent until the first to reach the queue is known: with several processes a later request may
        overtake."""
        while True:
            due = self._inner.next_ns()
            if due is None:
                return
            if self._on_way and (len(self._free) == 1 or due + self._terms.in_ns >= self._on_way[0][0]):
                return
            self._read(due)

    def _read(self, due: int) -> tuple[Request, int] | None:
        """Receive what is sent at `due`; return None if it is not a request of the queue yet."""
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
        """Return when a process has read a request sent at `sent`. A further sample of one that is `known` costs its
        answer alone."""
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
