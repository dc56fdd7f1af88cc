"""Sources of requests, whose arrivals follow a trace's times or are triggered by finished requests."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import log1p
from typing import Protocol

from servesim.contracts.request import FINISHED, Deadline, Request, SampleForm
from servesim.draws import uniform_one
from servesim.workload.content import RunContent, joined
from servesim.workload.predictor import predict
from servesim.workload.samples import FURTHER, PROMPTS, FanOut
from servesim.workload.sessions import Sessions
from servesim.workload.trace import COMPLETION, DISPATCH, Ints, Trace

CANCELLED = "cancelled by the client"
TIMEOUT = "no answer within the client's timeout"
TTFT_TIMEOUT = "no first token within the client's timeout"


class Workload(Protocol):
    """A source of requests. Closed loops and conversations create new requests in `on_finish`."""

    @property
    def open_loop(self) -> bool:
        """Whether requests arrive regardless of answers, so that they may be fetched ahead of time."""

    def next_ns(self) -> int | None:
        """Return when the next request arrives, or None if none is due (a later finish may still trigger one)."""

    def pop(self) -> tuple[Request, int] | None:
        """Return the next request and its true output length, or None if the event now due does not release a request
        yet. Call only when `next_ns()` is not None."""

    def on_finish(self, request: Request, now: int) -> None:
        """Handle a client learning at `now` that a request has left (finished, rejected, or aborted)."""

    def remaining(self) -> int:
        """Return how many requests may still arrive."""

    def future(self) -> list[Request] | None:
        """Return all requests in arrival order, for oracles, or None if the order depends on answers."""


@dataclass(frozen=True)
class Clients:
    """Behavior of clients. By default, they send at the trace's times, with unlimited patience."""

    max_concurrency: int | None = None
    """Maximum number of outstanding requests; the others wait outside the server, earliest due first (closed loop)."""
    batch: bool = False
    """Whether to send `max_concurrency` requests together, and the next batch only when all of them have left."""
    max_sessions: int | None = None
    """Maximum number of conversations (with everything they spawn) in progress; the next begins when one of them
    ends."""
    timeout_ns: int | None = None
    """Maximum time a client waits for the last token."""
    ttft_timeout_ns: int | None = None
    """Maximum time a client waits for the first token. A token already on its way at the timeout still counts."""
    retries: int = 0
    """Maximum number of retries of a request that was rejected or timed out."""
    retry_ns: int = 1_000_000_000
    """Time from when a client learns of the failure until it retries."""
    turn_ns: int = 0
    """Mean time from the end of a request until its client is free for the next one (exponential, keyed by request)."""
    ramp_up_ns: int = 0
    """Time over which the clients start, at even intervals."""
    seed: int = 0
    """Seed of the draws above."""


class TraceWorkload:
    """Replay of a trace. A request is sent at its recorded time or later, once the events it waits for (`Trace.after`)
    have happened and a client is free. Requests that depend on a permanently failed request are never sent (`unsent`).

    The a-th retry of row r of n has the number r + a n, which is unique and independent of the order of events. `form`
    is how the engine serves a request with several samples (Scheduler.samples); a permit or a deadline applies to one
    request.
    """

    def __init__(
        self,
        trace: Trace,
        predicted: Ints | None = None,
        clients: Clients | None = None,
        form: SampleForm = "children",
        count: int | None = None,
        several: bool = False,
    ) -> None:
        """Begin a replay. `predicted` holds the output lengths that policies see, for each row and then for each
        further sample; if it is None, they see the caps. If `trace` is only the beginning of a trace
        (servesim.workload.streamed), `count` is the number of rows of the whole, and `several` says whether any of them
        asks for several samples."""
        self.unsent = 0
        """Number of requests never sent because they depend on a failed one."""
        self._clients = clients = clients or Clients()
        self._count = len(trace) if count is None else count
        self._left = self._count  # rows neither sent nor given up
        self._again = 0  # retries not yet sent
        self._further = 0  # further samples of the rows before the window
        self._window(trace, predicted, 0)
        self._form = form
        self._fan_out = FanOut(form) if several or trace.samples is not None else None
        self._due: list[tuple[int, int]] = []  # rows that will be sent out of trace order, by send time
        self._next = 0  # first row sent at its recorded time regardless of other events
        self._sessions: Sessions | None = None
        if trace.after is not None or clients.max_sessions is not None:
            self._sessions = Sessions(trace, clients.max_sessions)
            self._due, self._next = self._sessions.start(), self._count
        most = clients.max_concurrency
        self._free: list[int] | None = None  # a heap of when clients become free
        if most is not None:
            self._free = [clients.ramp_up_ns * i // most for i in range(min(most, self._count))]
        self._outstanding = 0  # requests still in flight
        self._back: list[int] = []  # turn times of the batch's clients that finished before the batch ended

    @property
    def open_loop(self) -> bool:
        waits = self._sessions is not None or self._free is not None or self._fan_out is not None
        return not waits and not self._clients.retries

    def _window(self, trace: Trace, predicted: Ints | None, first: int) -> None:
        """Load the rows of `trace`, which begin at row `first` of the whole trace."""
        self._first, self._end, self._samples = first, first + len(trace), trace.samples
        self._ids = trace.request_id
        columns = (trace.arrival_ns, trace.prompt_len, trace.output_len, trace.max_tokens, trace.priority, trace.stop)
        self._arrival, self._prompt, self._output, self._cap, self._priority, self._stop = (c.tolist() for c in columns)
        self._predicted = (predict("max_tokens", trace) if predicted is None else predicted).tolist()
        self._cancel = trace.cancel_ns.tolist() if trace.cancel_ns is not None else None
        patience = (trace.cancel_ns, self._clients.timeout_ns, self._clients.ttft_timeout_ns)
        self._impatient = any(limit is not None for limit in patience)
        self._labels = [trace.labels.get(name) for name in ("session", "tenant", "class", "model")]
        self._labeled = any(labels is not None for labels in self._labels)
        self._content = self._told = trace.content
        if trace.content is not None and len(trace) == self._count:  # rows yet to come might diverge where these agree
            self._content = joined(trace.content)

    def next_ns(self) -> int | None:
        due = self._due[0][0] if self._due else None
        if self._next < self._end and (due is None or self._arrival[self._next - self._first] <= due):
            due = self._arrival[self._next - self._first]
        if self._free is not None and due is not None:
            due = max(due, self._free[0]) if self._free else None
        if self._fan_out is None:
            return due
        sample = self._fan_out.next_ns()
        return due if sample is None or (due is not None and due < sample) else sample

    def pop(self) -> tuple[Request, int]:
        now = self.next_ns()
        assert now is not None
        if self._fan_out is not None and self._fan_out.next_ns() == now:
            return self._fan_out.pop()
        at = self._next - self._first
        if self._next < self._end and (not self._due or (self._arrival[at], self._next) < self._due[0]):
            number = self._next
            self._next += 1
        else:
            number = heappop(self._due)[1]
        self._outstanding += 1
        if self._free is not None:
            heappop(self._free)
        attempt, row = divmod(number, self._count)
        if attempt:
            self._again -= 1
        else:
            self._left -= 1
            if self._sessions is not None:
                self._release(row, DISPATCH, now)
        if self._fan_out is not None:
            return self._opened(number, row, self._output[row - self._first], now)
        return self._request(number, row, now), self._output[row - self._first]

    def _opened(self, number: int, row: int, output_len: int, now: int) -> tuple[Request, int]:
        """Return the first request to send for request `number`, which may have several samples, and its output
        length."""
        samples, fan_out, at = self._samples, self._fan_out, row - self._first
        assert fan_out is not None
        lengths = samples.lengths(at) if samples is not None else []
        if samples is None or not lengths:
            return self._request(number, row, now), output_len
        start = int(samples.offsets[at])
        further = FURTHER + number // self._count * len(samples.output_len) + self._further + start

        def make(sample: int) -> Request:
            return self._request(number, row, now, start + sample - 1 if sample else -1)

        return fan_out.open([output_len, *lengths], make, now, further=further, prompt=PROMPTS + number)

    def on_finish(self, request: Request, now: int) -> None:
        """Free the client of a finished request, and release the requests that were waiting for it."""
        number, failed, reason = request.row, request.state is not FINISHED, request.reason
        if (parent := request.parent) is not None:
            assert self._fan_out is not None
            if not self._fan_out.leave(request, now):
                return
            number, failed, reason = parent.number, bool(parent.reason), parent.reason
        attempt, row = divmod(number, self._count)
        if failed and attempt < self._clients.retries and reason != CANCELLED:
            heappush(self._due, (now + self._clients.retry_ns, number + self._count))
            self._again += 1
        elif self._sessions is not None:
            if failed:
                lost = self._sessions.give_up(row)
                self.unsent += lost
                self._left -= lost
            else:
                self._release(row, COMPLETION, now)
            for entry in self._sessions.end(row, now):
                heappush(self._due, entry)
        self._outstanding -= 1
        if self._free is None:
            return
        self._back.append(self._turn_ns(number))
        if self._outstanding == 0 or not self._clients.batch:
            for turn_ns in self._back:
                heappush(self._free, now + turn_ns)
            self._back.clear()

    def _turn_ns(self, number: int) -> int:
        """Return the time from the end of a request until its client is free."""
        mean = self._clients.turn_ns
        return round(-mean * log1p(-uniform_one(self._clients.seed, "client turn", number))) if mean else 0

    def remaining(self) -> int:
        return self._left + self._again

    def future(self) -> list[Request] | None:
        if self._sessions is not None or self._clients.retries or (self._fan_out and self._form == "prefix-first"):
            return None
        if self._fan_out is None:
            return [self._request(row, row, 0) for row in range(self._count)]
        requests = []
        for row in range(self._count):
            requests.append(self._opened(row, row, 1, 0)[0])
            while self._fan_out.next_ns() is not None:
                requests.append(self._fan_out.pop()[0])
        return requests

    def _release(self, row: int, trigger: int, now: int) -> None:
        assert self._sessions is not None
        for entry in self._sessions.release(row, trigger, now):
            heappush(self._due, entry)

    def _request(self, number: int, row: int, now: int, sample: int | None = None) -> Request:
        """Return request `number` or, if `sample` is set, one of its samples: a further sample of the window by its
        place, or the first one (-1)."""
        attempt, at = number // self._count, row - self._first
        place, answer = at, row
        if sample is not None and sample >= 0:
            place, answer = len(self._prompt) + sample, self._count + self._further + sample
        name = self._ids[at] if self._ids is not None else str(row)
        content = None
        if self._content is not None or sample is not None:
            runs = self._content.runs(at) if self._content is not None else [(row, self._prompt[at])]
            told = (self._told, at) if self._told is not None and self._told is not self._content else None
            content = RunContent(answer, runs, told)
        session = tenant = slo_class = model = ""
        if self._labeled:
            session, tenant, slo_class, model = [labels[at] if labels is not None else "" for labels in self._labels]
        request = Request(
            number,
            f"{name}#{attempt}" if attempt else name,
            self._prompt[at],
            self._cap[at],
            now,
            self._priority[at],
            "",
            content,
            session,
            tenant,
            slo_class,
            self._predicted[place],
            self._deadlines(at, now) if self._impatient else (),
            self._stop[at],
        )
        if model:
            request.model = model
        return request

    def _deadlines(self, at: int, now: int) -> tuple[Deadline, ...]:
        clients, deadlines = self._clients, []
        if self._cancel is not None and self._cancel[at] >= 0:
            deadlines.append(Deadline(now + self._cancel[at], False, CANCELLED))
        if clients.timeout_ns is not None:
            deadlines.append(Deadline(now + clients.timeout_ns, False, TIMEOUT))
        if clients.ttft_timeout_ns is not None:
            deadlines.append(Deadline(now + clients.ttft_timeout_ns, True, TTFT_TIMEOUT))
        return tuple(deadlines)
