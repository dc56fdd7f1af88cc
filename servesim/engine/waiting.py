"""Requests that wait in the router, which is asked for them again after everything that it hears."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from simpy.events import Event

from servesim.contracts.request import Request, State
from servesim.contracts.router import WAIT, Decision
from servesim.engine.clock import RECALL, Clock


class Waiting:
    """Queues ordered by the router's `queue_key`, then by arrival: one for each model that requests ask for.

    `decide` asks the router for a request, `act` does with it what the router said.
    """

    def __init__(
        self, clock: Clock, decide: Callable[[Request], Decision], act: Callable[[Request, int, Decision], None]
    ) -> None:
        self._clock = clock
        self._decide, self._act = decide, act
        self._heaps: dict[str, list[tuple[Any, int, Request, int]]] = {}  # by model: key, count, request, output length
        self._num_held = 0
        self._recalled = False

    @property
    def num_waiting(self) -> int:
        """Requests that wait here; those that their clients gave up do not count."""
        return sum(request.state < State.FINISHED for heap in self._heaps.values() for _, _, request, _ in heap)

    def num_for(self, serves: Callable[[str], bool]) -> int:
        """Return how many wait that ask for a model which `serves` holds for."""
        heaps = [heap for model, heap in self._heaps.items() if serves(model)]
        return sum(request.state < State.FINISHED for heap in heaps for _, _, request, _ in heap)

    def hold(self, key: Any, request: Request, output_len: int, model: str) -> None:
        """Let a request wait, with those that ask for the same model."""
        heappush(self._heaps.setdefault(model, []), (key, self._num_held, request, output_len))
        self._num_held += 1

    def recall(self) -> None:
        """Have the router asked again at the end of this instant, where any request waits."""
        if self._heaps and not self._recalled:
            self._recalled = True
            self._clock.at(self._clock.ns, RECALL, self._recall)

    def _recall(self, event: Event) -> None:
        self._recalled = False
        for model in list(self._heaps):
            self._ask(self._heaps[model])
            if not self._heaps[model]:
                del self._heaps[model]

    def _ask(self, heap: list[tuple[Any, int, Request, int]]) -> None:
        while heap:
            request = heap[0][2]
            if request.state < State.FINISHED:
                decision = self._decide(request)
                if decision is WAIT:
                    return
                self._act(request, heap[0][3], decision)
            heappop(heap)
