"""Integer nanoseconds on SimPy's event queue, and the order of events at one instant."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

# At one instant: steps complete (by replica), KV comes from elsewhere, clients give up, requests arrive, schedulers
# plan (by replica).
COMPLETE = 0
ARRIVE = 1 << 20
ABORT = ARRIVE - 1
LOADED = ARRIVE - 2
PLAN = ARRIVE + 1


class Clock(simpy.Environment):
    """A SimPy environment whose time is a whole number of nanoseconds."""

    rejected: tuple[int, int] = (-1, -1)
    """(ns, replica) of the last plan that rejected a request, which may make another one arrive at that instant: after
    the plans of all replicas up to that one."""

    @property
    def ns(self) -> int:
        """Now."""
        return self._now  # type: ignore[return-value]

    def at(self, ns: int, order: int, callback: Callable[[Event], None]) -> Event:
        """Call `callback(event)` at `ns`; among events of one instant by `order`, lowest first."""
        event = Event(self)
        event._ok = True
        event._value = None
        event.callbacks.append(callback)
        self.schedule(event, order, ns - self._now)  # type: ignore[arg-type]
        return event
