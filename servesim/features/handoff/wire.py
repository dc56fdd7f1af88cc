"""The medium over which KV goes from one replica to another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from servesim.contracts.request import Request
from servesim.engine.clock import LOADED, Clock


class Wire(ABC):
    """Transfers on a clock."""

    clock: Clock

    def join(self, clock: Clock) -> None:
        """Run on this clock."""
        self.clock = clock

    @abstractmethod
    def send(self, source: int, destination: int, num_bytes: int, request: Request, done: Callable[[], None]) -> None:
        """Begin to send KV of a prompt, which `request` has computed at the source; call `done` at the instant at which
        all has come."""


class FixedRate(Wire):
    """Every transfer takes its bytes over one bandwidth, whatever else is sent. `rate`: bytes a ns."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def send(self, source: int, destination: int, num_bytes: int, request: Request, done: Callable[[], None]) -> None:
        ns = int(num_bytes / self._rate + 0.5)
        self.clock.at(self.clock.ns + ns, LOADED, lambda event: done())
