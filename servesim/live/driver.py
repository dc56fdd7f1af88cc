"""Driver of a cluster in the time of an asyncio event loop.

Everything happens in one thread. A step ends when it ends, however late the loop hears of it, and a request arrives at
the time with which its caller stamped it; so lateness never adds up, and an offline run of the same requests is the
same to the nanosecond. Timers are set for absolute times. The engine's clock stands still between events.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from servesim.contracts.part import Part
from servesim.contracts.request import Deadline, Request, State
from servesim.engine.clock import ABORT, FOLLOW
from servesim.engine.pool import Pool
from servesim.errors import PolicyError, UserError
from servesim.live.arrivals import Arrivals
from servesim.live.deployment import one_row, set_up_live, why_no_samples
from servesim.live.recording import Recording
from servesim.live.stream import Lateness, Stream
from servesim.live.tokens import TokenContent, Words
from servesim.live.watcher import Telling, Watcher
from servesim.run.scenario import Scenario
from servesim.workload.front_end import FrontEnd
from servesim.workload.predictor import predict
from servesim.workload.workload import CANCELLED

if TYPE_CHECKING:
    from servesim.live.operations import Operations

NS = 1e9
FOREVER = float("inf")


class Outputs(Part):
    """Part that reports the tokens of each step: `told` is called with each request and its number of tokens."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def core_made(self, replica: Any) -> None:
        core, others, told = replica.core, replica.core.on_output, self._told
        core.step_plainly()
        if others is None:
            core.on_output = told
            return

        def both(request: Request, tokens: int) -> None:
            others(request, tokens)
            told(request, tokens)

        core.on_output = both


class Driver:
    """Cluster of a scenario, driven by the running event loop. Simulated time passes `speed` times as fast as the
    loop's. `recording` receives every request; `watchers` follow what happens."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        speed: float = 1.0,
        recording: Recording | None = None,
        watchers: Sequence[Watcher] = (),
        operated: bool = False,
    ) -> None:
        """Set up the cluster, on which `operate` acts if it is `operated`. Raise UserError if it needs to know the
        future, or cannot be operated."""
        self.setup = set_up_live(scenario)
        for watcher in watchers:
            watcher.driver = self
        self.operations: Operations | None = None
        if operated:
            from servesim.live.operations import Operations

            self.operations = Operations(self.setup)
        self.speed = speed
        self.recording = recording
        self.streams: dict[int, Stream] = {}
        """Answers in progress, by row."""
        self.failure = ""
        """The error of the policy that ended the run; empty while all is well."""
        self.late = Lateness()
        self._front = self.setup.front
        form = self.setup.cores[0].scheduler.samples
        self._arrivals = Arrivals(form, self._left, self._samples_due)
        self._no_samples: str | None = None
        self._deliveries: deque[tuple[int, Stream, int, str]] = deque()  # (due in ns, stream, tokens, error)
        self._rows, self._last_ns = 0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._due: float = FOREVER
        for part in self.setup.parts:
            part.has_end = False
        self.setup.parts.extend([Outputs(self._output), *watchers])
        self.cluster = self.setup.cluster(self._arrivals, Telling(watchers, self._front.out_ns))
        assert isinstance(self.cluster.workload, FrontEnd)
        self._queue: FrontEnd = self.cluster.workload
        self._clock = self.cluster.clock

    def start(self) -> None:
        """Let simulated time begin, at 0, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.cluster.start()
        self._set_timer()

    def close(self) -> None:
        """Let simulated time stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = FOREVER

    def scenario_of(self, pool: Pool) -> Scenario:
        """Return the resolved scenario of a pool."""
        return next(each.scenario for each in self.setup.pools if each.pool is pool)

    def now_ns(self) -> int:
        """Return the current simulated time in ns."""
        return self.ns_of(self._loop.time())

    def ns_of(self, time: float) -> int:
        """Return the simulated time in ns of a time of the loop in s."""
        return round((time - self._began) * self.speed * NS)

    def handed(self, stream: Stream) -> None:
        """Count how late the tokens are that the client of a stream has taken just now."""
        if stream.waited:
            stream.waited = False
            self.late.add(self.now_ns() - stream.due_ns)

    def submit(
        self, prompt: Sequence[int], max_tokens: int, output_len: int, *, at_ns: int | None = None, **fields: Any
    ) -> Stream:
        """Take a request for one answer of `output_len` tokens; see `submit_samples`."""
        return self.submit_samples(prompt, max_tokens, [Words(self._rows, output_len)], at_ns=at_ns, **fields)[0]

    def submit_samples(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        answers: Sequence[Sequence[int]],
        *,
        at_ns: int | None = None,
        **fields: Any,
    ) -> list[Stream]:
        """Take a request that was sent at `at_ns` (default: now), and return its answers. `answers`: their token ids,
        which later prompts may quote; their first tokens differ from those of all other answers. A time before the last
        request, or too early to reach the queue after what has already happened there, is moved. `fields`: further
        fields of the Request. Raise UserError if the deployment cannot serve several answers."""
        if self.failure:
            raise PolicyError(self.failure)
        if len(answers) > 1:
            self._check_samples()
        sent = self.now_ns() if at_ns is None else at_ns
        sent = max(sent, self._last_ns, self._clock.ns - self._front.in_ns + 1, 0)
        self._last_ns, row = sent, self._rows
        self._rows += 1
        outputs = [len(answer) for answer in answers]
        predicted = self._predicted(row, len(prompt), max_tokens, outputs)

        def make(sample: int) -> Request:
            content = TokenContent(prompt, answers[sample])
            request = Request(row, str(row), len(prompt), max_tokens, sent, content=content, **fields)
            request._stops = outputs[sample] < max_tokens
            request.predicted_output_len = predicted[sample]
            return request

        members = self._arrivals.push(outputs, make)
        streams = [Stream(request, output) for request, output in zip(members, outputs, strict=True)]
        self.streams |= {stream.request.row: stream for stream in streams}
        if self.recording is not None:
            self.recording.arrived(members[0], outputs, prompt, answers[0])
        self._look_again()
        return streams

    def _check_samples(self) -> None:
        if self._no_samples is None:
            self._no_samples = why_no_samples(self.setup.scenario)
        if self._no_samples:
            raise UserError(self._no_samples)

    def _samples_due(self, ns: int) -> None:
        """Send at `ns` the samples whose prompt has been computed for them."""

        def send(event: Any) -> None:
            self._last_ns = max(self._last_ns, ns)
            self._arrivals.send_samples()
            self._look_again()

        self._clock.at(ns, FOLLOW, send)

    def _look_again(self) -> None:
        """Let the cluster see the requests that have been pushed."""
        self._queue.look_again()
        self.cluster.arm()
        self._set_timer()

    @property
    def next_row(self) -> int:
        """Row of the next request."""
        return self._rows

    def cancel(self, stream: Stream) -> None:
        """Handle the disconnection of a client at this instant. Do nothing if its answer has ended."""
        if stream.ended:
            return
        stream.cancelled = True
        stream.wake()
        self.streams.pop(stream.request.row, None)
        request = self._arrivals.sent_for(stream.request)
        in_ns = self._front.in_ns
        left = max(self.now_ns(), request.arrival_ns, self._clock.ns - in_ns + 1)
        if self.recording is not None:
            self.recording.left(request, left)
        if self._arrivals.holds(request) or self._queue.holds(request):
            request.deadlines = (Deadline(left, False, CANCELLED),)
            return
        deadline = Deadline(left + in_ns, False, CANCELLED)
        self._clock.at(deadline.ns, ABORT, partial(self.cluster.give_up, request, deadline))
        self._set_timer()

    def operate(self, say: Callable[[int], str], at_ns: int = 0) -> None:
        """Let something happen to the cluster at a time at which nothing else does: now or, if that is later, at
        `at_ns`. `say` returns it for this time, in the form of `cluster.failures`. Raise UserError if it cannot be."""
        assert self.operations is not None
        now = self.now_ns()
        if not self._advance(now):
            return
        soon = max(now, self._clock.ns + 1)
        at = self.operations.happens(say, max(soon, at_ns), self.cluster.fleet, self._clock)
        if at_ns <= soon:
            self._advance(at)
        self._set_timer()

    def _predicted(self, row: int, prompt_len: int, max_tokens: int, outputs: Sequence[int]) -> list[int]:
        """Return the predicted lengths of a request's answers."""
        name = self.setup.predictor
        if name == "max_tokens":
            return [max_tokens] * len(outputs)
        return [int(each) for each in predict(name, one_row(prompt_len, outputs), self.setup.scenario.seed, row)]

    # Time.

    def _set_timer(self) -> None:
        due = self._clock.peek()
        if self._deliveries and self._deliveries[0][0] < due:
            due = self._deliveries[0][0]
        if due == self._due or self.failure:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due != FOREVER:
            self._timer = self._loop.call_at(self._began + due / (self.speed * NS), self._wake)

    def _wake(self) -> None:
        due, now = int(self._due), self.now_ns()
        self.late.add(now - due)
        now = max(now, due)  # a timer may go off a little early
        self._timer, self._due = None, FOREVER
        if not self._advance(now):
            return
        deliveries = self._deliveries
        while deliveries and deliveries[0][0] <= now:
            due, stream, tokens, reason = deliveries.popleft()
            if stream.cancelled:
                continue
            if reason:
                stream.end(reason)
            else:
                stream.add(tokens, due)
            if stream.ended:
                self.streams.pop(stream.request.row, None)
        self._set_timer()

    def _advance(self, now: int) -> bool:
        """Let everything happen that is due by `now`. Return False if a policy fails."""
        try:
            self.cluster.advance(now)
        except Exception as error:  # of a policy, most likely: it ends the answers, not the server
            self._fail(error)
            return False
        return True

    def _fail(self, error: Exception) -> None:
        self.failure = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"error: {self.failure}; its answers end with status 500, and the next request restarts it\n")
        self._deliveries.clear()
        for stream in self.streams.values():
            stream.end(self.failure)
        self.streams.clear()
        self.close()

    def _output(self, request: Request, tokens: int) -> None:
        """Handle tokens that the engine has delivered at this instant."""
        if request.owner is None and (stream := self.streams.get(request.row)) is not None:
            self._deliveries.append((request._last_token_ns + self._front.out_ns, stream, tokens, ""))

    def _left(self, request: Request, now: int) -> None:
        """Handle a request that has left; `now`: when its client learns it."""
        if request.state is State.FINISHED:
            return
        parent = request.parent
        for each in [request] if parent is None or request.sample > 0 else parent.members:
            if (stream := self.streams.get(each.row)) is not None:
                self._deliveries.append((now, stream, 0, request.reason or request.state.name.lower()))
