"""Workload of requests that come from outside one by one, at times that were not known before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from servesim.contracts.request import Request, SampleForm
from servesim.workload.samples import FURTHER, PROMPTS, FanOut


class Arrivals:
    """Requests that are pushed; there may always be another. `form`: how the engine serves several samples. `on_left`
    is called with each request that has left, and the time in ns at which its client learns it; `on_due` with the time
    at which samples are to be sent, when `send_samples` must be called."""

    open_loop = True
    unsent = 0

    def __init__(
        self, form: SampleForm, on_left: Callable[[Request, int], None], on_due: Callable[[int], None]
    ) -> None:
        self._on_left, self._on_due = on_left, on_due
        self._due: deque[tuple[Request, int]] = deque()
        self._fan_out = FanOut(form)
        self._forks = form == "fork"
        self._further = FURTHER
        self._alone: dict[int, Request] = {}
        """Requests that compute a prompt for others to come, by the number of those."""

    def push(self, outputs: Sequence[int], make: Callable[[int], Request]) -> list[Request]:
        """Add a request that was sent at its `arrival_ns`, no earlier than the one before it, and return its samples.
        `outputs`: the length of each sample; `make(i)` creates sample i from 0."""
        if len(outputs) == 1:
            request = make(0)
            self._due.append((request, outputs[0]))
            return [request]
        first, output_len = self._fan_out.open(outputs, make, -1, further=self._further, prompt=0)
        self._further += len(outputs) - 1
        parent = first.parent
        assert parent is not None
        if first.sample < 0:
            first.row = PROMPTS + parent.number
            self._alone[parent.number] = first
        self._due.append((first, output_len))
        self.send_samples()
        return parent.members

    def send_samples(self) -> None:
        """Send the samples that are due."""
        while self._fan_out.next_ns() is not None:
            request, output_len = self._fan_out.pop()
            if self._due:  # an arrival that a late loop has stamped after these samples were due
                request.arrival_ns = max(request.arrival_ns, self._due[-1][0].arrival_ns)
            self._due.append((request, output_len))

    def sent_for(self, request: Request) -> Request:
        """Return the request that was sent in place of a sample, whose client gives up on all: itself, what computes
        its prompt first, or what it is forked from."""
        parent = request.parent
        if parent is None:
            return request
        return parent.members[0] if self._forks else self._alone.get(parent.number, request)

    def holds(self, request: Request) -> bool:
        """Return whether the server has not received a request yet."""
        return self._fan_out.holds(request) or any(each is request for each, _ in self._due)

    def next_ns(self) -> int | None:
        return self._due[0][0].arrival_ns if self._due else None

    def pop(self) -> tuple[Request, int] | None:
        return self._due.popleft()

    def on_finish(self, request: Request, now: int) -> None:
        self._on_left(request, now)
        if request.parent is not None:
            if request.sample < 0:
                self._alone.pop(request.parent.number, None)
            self._fan_out.leave(request, now)
            if self._fan_out.next_ns() is not None:
                self._on_due(now)

    def remaining(self) -> int:
        return len(self._due) + 1

    def future(self) -> list[Request] | None:
        return None
