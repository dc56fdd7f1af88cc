"""The front end of a server: API processes that receive requests and stream answers.

An API process (one of vLLM's `--api-server-count`) handles HTTP for a request, renders and tokenizes its prompt,
detokenizes its output, and streams the text. It is one event loop (vllm/entrypoints/openai/api_server.py and SGLang's
tokenizer_manager.py on asyncio): requests take turns at each `await`, so those in progress share the process, and
requests that come at once all reach the queue late, about when the last of them does. On one server (Qwen3-235B, eight
H100, vLLM 0.11; gpustack) the first tokens of 984 prompts sent at once came after 5 to 14 s, half of them by 9.7 s:
10.1 s if the process is shared, 4.3 s if prompts are read one after another, with the same work for each.

Each request goes to the process that reads the fewest prompts. Streaming answers takes up part of its time:

- The work of an answer, split into pieces, falls due evenly over its decoding, which is assumed to take TOKEN_NS per
  token. This depends only on facts known when the request arrives, so arrivals depend only on the requests sent,
  whatever the mode.
- Answer work that is due when a prompt comes or goes takes half of the process's time until it is done, because an
  answer that falls behind has its chunks merged (vLLM's RequestOutputCollector), which is why servers stream more
  tokens per second than a process could send chunks (29,000 measured; InferenceX, MiniMax-M2.5 on two B300, vLLM 0.19).
  So the front end caps the rate of a burst of short prompts, but not that of long answers.
- The time that a chunk waits behind others is not added to token times; `out_ns` is a constant.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

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

    def answer_ns(self, output_len: int) -> int:
        """Return the work of streaming an answer of `output_len` tokens if none of its chunks are merged."""
        return round(self.chunk_ns * -(-output_len // self.stream_interval))


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request on its way to the queue."""

    ns: int
    """Time at which the client sent it."""
    number: int
    request: Request
    output_len: int
    tokens: int
    """Number of prompt tokens to tokenize."""


class _Process:
    """An API process: an event loop shared by the requests that it receives and the answers that it streams, and a
    thread that tokenizes prompts in order."""

    __slots__ = ("_answers", "_at", "_due", "_each", "_received", "_tokenized")

    def __init__(self) -> None:
        self._at = 0
        """Time in ns up to which the loop's work is counted."""
        self._each = 0.0
        """Work in ns that the loop has done for each request, of those received since it last had none."""
        self._received: deque[tuple[float, _Sent]] = deque()
        """Requests in progress, in order, with the `_each` at which they go on to the tokenizer."""
        self._answers: list[tuple[int, int]] = []
        """A heap of (time at which it falls due, work in ns) of the pieces of answers."""
        self._due = 0.0
        """Work in ns of answers that is due and not done."""
        self._tokenized = 0
        """Time at which the tokenizer has done all prompts that it was given."""

    def __len__(self) -> int:
        """Return the number of requests that the loop works on."""
        return len(self._received)

    def next_ns(self) -> int:
        """Return when the next request goes on to the tokenizer if none comes before."""
        work = max(self._received[0][0] - self._each, 0.0) * len(self._received)
        return self._at + ceil(work + min(work, self._due))

    def add(self, sent: _Sent, work: float) -> None:
        """Receive a request that takes `work` ns of the loop."""
        self._work_until(sent.ns)
        self._received.append((self._each + work, sent))

    def ready_ns(self, terms: FrontTerms) -> int:
        """Return when the next request is tokenized if none comes before."""
        return max(self._tokenized, self.next_ns()) + round(terms.token_ns * self._received[0][1].tokens)

    def pop(self, terms: FrontTerms) -> tuple[int, _Sent]:
        """Return the next request and when it is tokenized; its answer falls due from then on."""
        now, self._tokenized = self.next_ns(), self.ready_ns(terms)
        self._work_until(now)
        each, sent = self._received.popleft()
        self._each = each if self._received else 0.0
        answer, pieces = terms.answer_ns(sent.output_len), min(PIECES, sent.output_len)
        for i in range(1, pieces + 1 if answer else 1):
            piece = answer * i // pieces - answer * (i - 1) // pieces
            heappush(self._answers, (self._tokenized + TOKEN_NS * sent.output_len * i // pieces, piece))
        return self._tokenized, sent

    def _work_until(self, now: int) -> None:
        """Count the loop's work until `now`, then the answers that are due by then."""
        time = float(now - self._at)
        if self._received:
            streamed = min(time / 2, self._due)
            self._each += (time - streamed) / len(self._received)
            self._due -= streamed
        else:
            self._due = max(self._due - time, 0.0)
        while self._answers and self._answers[0][0] <= now:
            due, work = heappop(self._answers)
            self._due += work if self._received else max(work - (now - max(due, self._at)), 0)
        self._at = now


class FrontEnd:
    """A workload seen through a server's front end. A request reaches the queue when a process has handled and
    tokenized it, and its client learns that it has ended `out_ns` after the engine finishes it."""

    def __init__(self, inner: Workload, terms: FrontTerms) -> None:
        self._inner = inner
        self._terms = terms
        self._works = bool(terms.request_ns or terms.token_ns or terms.chunk_ns)
        self._processes = [_Process() for _ in range(terms.processes)]
        self._on_way: list[tuple[int, int, _Sent]] = []  # a heap of (arrival at the queue, number, request)
        self._count = 0
        self._ahead = inner.open_loop  # if True, the clock stops only at queue arrivals, not at sends

    @property
    def open_loop(self) -> bool:
        return self._inner.open_loop

    def next_ns(self) -> int | None:
        due = self._inner.next_ns()
        if not self._works:
            return due + self._terms.in_ns if due is not None else None
        ready = self._ready_ns()
        if self._ahead:
            while due is not None and (ready is None or due + self._terms.in_ns < ready):
                self._receive(due)
                due, ready = self._inner.next_ns(), self._ready_ns()
            return ready
        return due if ready is None or (due is not None and due < ready) else ready

    def pop(self) -> tuple[Request, int] | None:
        due = self._inner.next_ns()
        if not self._works:
            popped = self._inner.pop()
            if popped is not None:
                _postpone(popped[0], self._terms.in_ns)
            return popped
        ready = self._ready_ns()
        if ready is None or not (self._ahead or due is None or ready <= due):
            assert due is not None
            self._receive(due)
            return None
        self._tokenize(ready - self._terms.in_ns)
        _, _, sent = heappop(self._on_way)
        _postpone(sent.request, ready - sent.ns)
        return sent.request, sent.output_len

    def _ready_ns(self) -> int | None:
        """Return when the next request reaches the queue if none is sent before, or None."""
        ready = [process.ready_ns(self._terms) + self._terms.in_ns for process in self._processes if process]
        if self._on_way:
            ready.append(self._on_way[0][0])
        return min(ready, default=None)

    def _tokenize(self, now: int) -> None:
        """Let requests go on to the tokenizers that are due to by `now`."""
        for process in self._processes:
            while process and process.next_ns() <= now:
                done, sent = process.pop(self._terms)
                heappush(self._on_way, (done + self._terms.in_ns, sent.number, sent))

    def _receive(self, due: int) -> None:
        """Receive the request sent at `due`, if there still is one."""
        popped = self._inner.pop()
        if popped is None:
            return
        request, output_len = popped
        parent = request.parent
        known = parent is not None and parent.tokenized  # a further sample, whose prompt has been handled
        if parent is not None:
            parent.tokenized = True
        self._tokenize(due)
        sent = _Sent(due, self._count, request, output_len, 0 if known else request.prompt_len)
        min(self._processes, key=len).add(sent, 0.0 if known else self._terms.request_ns)
        self._count += 1

    def on_finish(self, request: Request, now: int) -> None:
        self._inner.on_finish(request, now + self._terms.out_ns)

    def future(self) -> list[Request] | None:
        return self._inner.future()

    def remaining(self) -> int:
        return self._inner.remaining() + len(self._on_way) + sum(map(len, self._processes))


def _postpone(request: Request, ns: int) -> None:
    """Move a request's deadlines, which count from when it was sent, by the time that it took to reach the queue."""
    if request.deadlines:
        request.deadlines = tuple(d._replace(ns=d.ns + ns) for d in request.deadlines)
