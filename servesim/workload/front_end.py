"""The front end of a server: API processes that receive requests and stream answers.

An API process (one of vLLM's `--api-server-count`) handles HTTP for a request, renders and tokenizes its prompt,
detokenizes its output, and streams the text. It is one event loop (vllm/entrypoints/openai/api_server.py and SGLang's
tokenizer_manager.py on asyncio): requests take turns at each `await`, so those in progress share the process, and
requests that come at once all reach the queue late, about when the last of them does. On one server
(Qwen3-235B in FP8, four H100, vLLM 0.11; gpustack) the first tokens of 984 conversations sent at once came after 9.9 s
in the mean: simulated 9.8 s, and 4.3 s if prompts are read one after another, with the same work for each.

Each request goes to the process with the fewest requests in its loop; further samples of a prompt come with the first.
Streaming answers takes up part of its time:

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
from typing import Any

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


_Sent = tuple[int, int, Request, int]
"""A request on its way: when it was sent, its number, the request, its output length."""


class _Process:
    """An API process: an event loop shared by the requests that it receives and the answers that it streams, and a
    thread that tokenizes prompts in order."""

    __slots__ = ("_answers", "_at", "_due", "_each", "_terms", "_tokenized", "next_ns", "ready_ns", "received")

    def __init__(self, terms: FrontTerms) -> None:
        self._terms = terms
        self.received: deque[tuple[float, _Sent]] = deque()
        """Requests that the loop works on, in order, with the `_each` at which they go on to the tokenizer."""
        self.next_ns = 0
        """When the next request, if there is one, goes on to the tokenizer unless another comes before."""
        self.ready_ns = 0
        """When it is tokenized then."""
        self._at = 0
        """Time in ns up to which the loop's work is counted."""
        self._each = 0.0
        """Work in ns that the loop has done for each request, of those received since it last had none."""
        self._answers: list[tuple[int, float]] = []
        """A heap of the pieces of answers that are not due: (time at which it falls due, its work in ns)."""
        self._due = 0.0
        """Work in ns of answers that is due and not done."""
        self._tokenized = 0
        """Time at which the tokenizer has done all prompts that it was given."""

    def add(self, sent: _Sent, work: float) -> None:
        """Receive a request that takes `work` ns of the loop."""
        self._work_until(sent[0])
        self.received.append((self._each + work, sent))
        self._look()

    def _look(self) -> None:
        """Find out when the next request goes on to the tokenizer, and when it is tokenized."""
        each, sent = self.received[0]
        work = (each - self._each) * len(self.received)
        if self._due:
            work += self._due if self._due < work else work
        self.next_ns = start = self._at + ceil(work)
        if start < self._tokenized:
            start = self._tokenized
        self.ready_ns = start + int(self._terms.token_ns * sent[2].prompt_len + 0.5)

    def pop(self) -> tuple[int, _Sent]:
        """Return the next request and when it is tokenized; its answer falls due from then on."""
        ready = self._tokenized = self.ready_ns
        self._work_until(self.next_ns)
        each, sent = self.received.popleft()
        if self.received:
            self._each = each
            self._look()
        else:
            self._each = 0.0
        self.stream(ready, sent[3])
        return ready, sent

    def stream(self, start: int, output_len: int) -> None:
        """Let the pieces of an answer fall due, which begins at `start`."""
        answer = self._terms.answer_ns(output_len)
        if answer:
            pieces = PIECES if output_len > PIECES else output_len
            work, lasts, answers = answer / pieces, TOKEN_NS * output_len, self._answers
            for piece in range(1, pieces + 1):
                heappush(answers, (start + lasts * piece // pieces, work))

    def _work_until(self, now: int) -> None:
        """Count the loop's work until `now`, then the answers that are due by then."""
        owed, answers, waiting = self._due, self._answers, len(self.received)
        if waiting:
            time = now - self._at
            streamed = owed if owed < time / 2 else time / 2
            self._each += (time - streamed) / waiting
            owed -= streamed
            while answers and answers[0][0] <= now:
                owed += heappop(answers)[1]
        else:
            done = self._at + owed  # when the idle loop has done what was due
            while answers and answers[0][0] <= now:
                due, work = heappop(answers)
                done = (due if due > done else done) + work
            owed = done - now if done > now else 0.0
        self._due, self._at = owed, now


class FrontEnd:
    """A workload seen through a server's front end. A request reaches the queue when a process has handled and
    tokenized it, and its client learns that it has ended `out_ns` after the engine finishes it."""

    def __init__(self, inner: Workload, terms: FrontTerms) -> None:
        self._inner = inner
        self._terms = terms
        self._works = bool(terms.request_ns or terms.token_ns or terms.chunk_ns)
        self._processes = [_Process(terms) for _ in range(terms.processes)]
        self._busy: list[_Process] = []  # those that work on requests
        self._on_way: list[tuple[int, int, _Sent]] = []  # a heap of (arrival at the queue, number, request)
        self._ready: int | None = None
        """When the next request reaches the queue if none is sent before."""
        self._known = False  # whether none is sent before; the workload of an open loop is asked ahead
        self._asked = False  # whether that workload has said when the next request is sent: at `_sent_ns`
        self._sent_ns: int | None = None
        self._samples: dict[Any, list[_Sent]] = {}
        """Further samples of a prompt, by what they have in common, while its first one is on its way."""
        self._count = 0
        self._ahead = inner.open_loop  # if True, the clock stops only at queue arrivals, not at sends

    @property
    def open_loop(self) -> bool:
        return self._inner.open_loop

    def next_ns(self) -> int | None:
        if self._known:
            return self._ready
        due = self._sent_ns if self._asked else self._inner.next_ns()
        if not self._works:
            return due + self._terms.in_ns if due is not None else None
        ready = self._ready
        if not self._ahead:
            return due if ready is None or (due is not None and due < ready) else ready
        while due is not None and (ready is None or due + self._terms.in_ns < ready):
            self._receive(due)
            due, ready = self._inner.next_ns(), self._ready
        self._sent_ns, self._known, self._asked = due, True, True
        return ready

    def pop(self) -> tuple[Request, int] | None:
        if not self._works:
            popped = self._inner.pop()
            if popped is not None and popped[0].deadlines:
                _postpone(popped[0], self._terms.in_ns)
            return popped
        ready = self._ready
        if not self._known:
            due = self._inner.next_ns()
            if due is not None and (ready is None or due < ready):
                self._receive(due)
                return None
        assert ready is not None
        self._tokenize(ready - self._terms.in_ns)
        sent = heappop(self._on_way)[2]
        self._look()
        self._known = False
        if sent[2].deadlines:
            _postpone(sent[2], self._terms.in_ns)
        return sent[2], sent[3]

    def _look(self) -> None:
        """Find out when the next request reaches the queue if none is sent before."""
        first = self._on_way[0][0] if self._on_way else None
        for process in self._busy:
            ready = process.ready_ns + self._terms.in_ns
            first = ready if first is None or ready < first else first
        self._ready = first

    def _tokenize(self, now: int) -> None:
        """Let requests go on to the tokenizers that are due to by `now`."""
        idle = False
        for process in self._busy:
            while process.received and process.next_ns <= now:
                done, sent = process.pop()
                ready = done + self._terms.in_ns
                heappush(self._on_way, (ready, sent[1], sent))
                if sent[2].parent is not None:
                    for sample in self._samples.pop(sent[2].parent):
                        heappush(self._on_way, (ready, sample[1], sample))
                        process.stream(done, sample[3])
            idle = idle or not process.received
        if idle:
            self._busy = [process for process in self._busy if process.received]

    def _receive(self, due: int) -> None:
        """Receive the request sent at `due`, if there still is one."""
        popped = self._inner.pop()
        if popped is None:
            return
        request, output_len = popped
        sent, parent = (due, self._count, request, output_len), request.parent
        self._count += 1
        if self._busy:
            self._tokenize(due)
        if parent is not None and parent.tokenized:  # a further sample, which comes with the first
            if parent in self._samples:
                self._samples[parent].append(sent)
            else:
                heappush(self._on_way, (due + self._terms.in_ns, sent[1], sent))
        else:
            if parent is not None:
                parent.tokenized = True
                self._samples[parent] = []
            process = self._processes[0]
            for other in self._processes:
                if not other.received:
                    process = other
                    self._busy.append(process)
                    break
                if len(other.received) < len(process.received):
                    process = other
            process.add(sent, self._terms.request_ns)
        self._look()

    def look_again(self) -> None:
        """Ask the inner workload again, which has a request that it did not know of before. The request must have been
        sent late enough to reach the queue after this instant."""
        self._known = self._asked = False

    def holds(self, request: Request) -> bool:
        """Return whether a request has been received but has not reached the queue."""
        sent = [entry[2] for entry in self._on_way]
        sent += [each for process in self._busy for _, each in process.received]
        sent += [each for further in self._samples.values() for each in further]
        return any(each[2] is request for each in sent)

    def on_finish(self, request: Request, now: int) -> None:
        self._inner.on_finish(request, now + self._terms.out_ns)

    def future(self) -> list[Request] | None:
        return self._inner.future()

    def remaining(self) -> int:
        on_way = len(self._on_way) + sum(map(len, self._samples.values()))
        return self._inner.remaining() + on_way + sum(len(p.received) for p in self._busy)


def _postpone(request: Request, ns: int) -> None:
    """Move a request's deadlines, which count from when it was sent, by the time in which the engine learns that its
    client has left. What passes while the request waits for its API process counts. A client whose patience ends in
    that time leaves only when its request reaches the queue, so its next one is late."""
    request.deadlines = tuple(d._replace(ns=d.ns + ns) for d in request.deadlines)
