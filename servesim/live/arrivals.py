"""Workload of requests that come from outside one by one, at times that were not known before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from servesim.contracts.request import Request


class Arrivals:
    """Requests that are pushed; there may always be another. `on_left` is called with each request that has left, and
    the time in ns at which its client learns it."""

    open_loop = True
    unsent = 0

    def __init__(self, on_left: Callable[[Request, int], None]) -> None:
        self._on_left = on_left
        self._due: deque[tuple[Request, int]] = deque()

    def push(self, request: Request, output_len: int) -> None:
        """Add a request that was sent at its `arrival_ns`, no earlier than the one before it."""
        self._due.append((request, output_len))

    def holds(self, request: Request) -> bool:
        """Return whether the server has not received a request yet."""
        return any(each is request for each, _ in self._due)

    def next_ns(self) -> int | None:
        return self._due[0][0].arrival_ns if self._due else None

    def pop(self) -> tuple[Request, int] | None:
        return self._due.popleft()

    def on_finish(self, request: Request, now: int) -> None:
        self._on_left(request, now)

    def remaining(self) -> int:
        return len(self._due) + 1

    def future(self) -> list[Request] | None:
        return None
