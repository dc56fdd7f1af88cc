"""Requests that wait in the router. The router reconsiders them after every notification."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from simpy.events import Event

from servesim.contracts.request import Request, State
from servesim.contracts.router import Decision, Reject, Wait
from servesim.engine.clock import ABORT, CHANGE, RECALL, Clock


class Waiting:
    """Queues ordered by the router's `queue_key`, then by arrival, with one queue for each requested model.

    `decide` returns the router's decision for a request, and `act` carries it out.
    """

    def __init__(
        self, clock: Clock, decide: Callable[[Request], Decision], act: Callable[[Request, int, Decision], None]
    ) -> None:
        self._clock = clock
        self._decide, self._act = decide, act
        self._heaps: dict[str, list[tuple[Any, int, Request, int]]] = {}  # by model: key, count, request, output length
        self._held: dict[Request, int] = {}  # waiting requests, with the count in their heap entry
        self._num_held = 0
        self._recalled = False
        self._again_ns = -1

    @property
    def num_waiting(self) -> int:
        """Number of requests waiting here."""
        return len(self._held)

    def num_for(self, serves: Callable[[str], bool]) -> int:
        """Return the number of waiting requests whose model satisfies `serves`."""
        heaps = [heap for model, heap in self._heaps.items() if serves(model)]
        return sum(request.state < State.FINISHED for heap in heaps for _, _, request, _ in heap)

    def hold(self, key: Any, request: Request, output_len: int, model: str, wait: Wait) -> None:
        """Add a request to the queue of its model."""
        entry = (key, self._num_held, request, output_len)
        heappush(self._heaps.setdefault(model, []), entry)
        self._held[request] = self._num_held
        self._num_held += 1
        if wait.most_ns is not None:
            self._clock.at(self._clock.ns + wait.most_ns, ABORT, partial(self._expire, entry, wait.status))
        self._wake(wait)

    def holds(self, request: Request) -> bool:
        """Return whether a request is waiting here."""
        return request in self._held

    def drop(self, request: Request) -> bool:
        """Remove a request that has left. Return False if it was not waiting here."""
        return self._held.pop(request, None) is not None

    def _expire(self, entry: tuple[Any, int, Request, int], status: int, event: Event) -> None:
        """Reject a request whose time is up, unless it has left the queue since this entry was made."""
        _, count, request, output_len = entry
        if self._held.get(request) == count:
            self._act(request, output_len, Reject(status))

    def _wake(self, wait: Wait) -> None:
        """Make the router reconsider its requests no later than the time it specified."""
        if wait.again_ns is None:
            return
        due = self._clock.ns + wait.again_ns
        if self._again_ns <= self._clock.ns or due < self._again_ns:
            self._again_ns = due
            self._clock.at(due, CHANGE, lambda event: self.recall())

    def recall(self) -> None:
        """Make the router reconsider its requests at the end of this instant if any are waiting. That alone does not
        keep the simulation going, or reports, each of which asks for it, would go on as long as requests wait."""
        if self._heaps and not self._recalled:
            self._recalled = True
            self._clock.background += 1
            self._clock.at(self._clock.ns, RECALL, self._recall)

    def _recall(self, event: Event) -> None:
        self._recalled = False
        self._clock.background -= 1
        for model in list(self._heaps):
            self._ask(self._heaps[model])
            if not self._heaps[model]:
                del self._heaps[model]

    def _ask(self, heap: list[tuple[Any, int, Request, int]]) -> None:
        while heap:
            request = heap[0][2]
            if request.state < State.FINISHED:
                decision = self._decide(request)
                if isinstance(decision, Wait):
                    self._wake(decision)
                    return
                if not isinstance(decision, Reject):
                    del self._held[request]
                self._act(request, heap[0][3], decision)
            heappop(heap)
