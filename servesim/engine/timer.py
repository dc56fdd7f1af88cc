"""Timers by which schedulers wait on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpy.events import Event

from servesim.engine.clock import CHANGE

if TYPE_CHECKING:
    from servesim.engine.core import EngineCore
    from servesim.engine.replica import Replica


class CoreTimer:
    """Timer of a core's scheduler, void once the replica uses another core."""

    def __init__(self, replica: Replica, core: EngineCore) -> None:
        self._replica, self._core = replica, core
        self._due = -1

    def now(self) -> int:
        """Return the simulated time in ns."""
        return self._replica.clock.ns

    def wake_at(self, ns: int) -> None:
        """Plan at `ns`, unless a step is in flight then."""
        if ns != self._due:
            self._due = ns
            self._replica.clock.at(ns, CHANGE, self._wake)

    def _wake(self, event: Event) -> None:
        if self._replica.core is self._core:
            self._replica.go_on()
