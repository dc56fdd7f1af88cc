"""The medium that carries KV from one replica to another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from servesim.contracts.request import Request
from servesim.engine.clock import LOADED, Clock
from servesim.engine.pool import Pool


class Wire(ABC):
    """KV transfers on a clock."""

    clock: Clock

    def join(self, clock: Clock) -> None:
        """Attach the wire to this clock."""
        self.clock = clock

    @abstractmethod
    def attach(self, index: int, pool: Pool) -> None:
        """Connect a replica of this pool, unless it is connected."""

    @abstractmethod
    def slow(self, index: int, factor: float) -> None:
        """Divide the bandwidth of a replica, which may be about to start, by `factor` from now on; 1: as at first."""

    @abstractmethod
    def send(
        self, source: int, destination: int, num_bytes: int, request: Request, done: Callable[[], None]
    ) -> Callable[[], None]:
        """Begin to send the KV of a prompt, which `request` has computed at the source; call `done` when all of it has
        arrived. Return a function that breaks the transfer off, after which `done` is not called."""


class FixedRate(Wire):
    """A wire with one fixed bandwidth for every transfer, regardless of other traffic. `rate`: bytes per ns. The
    duration of a transfer is known when it begins."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._factors: dict[int, float] = {}

    def attach(self, index: int, pool: Pool) -> None:
        """Do nothing: the bandwidth does not depend on the replica."""

    def slow(self, index: int, factor: float) -> None:
        self._factors[index] = factor

    def send(
        self, source: int, destination: int, num_bytes: int, request: Request, done: Callable[[], None]
    ) -> Callable[[], None]:
        factor = max(self._factors.get(source, 1.0), self._factors.get(destination, 1.0))
        ns = int(num_bytes * factor / self._rate + 0.5)
        event = self.clock.at(self.clock.ns + ns, LOADED, lambda event: done())
        return lambda: event.callbacks.clear()
