"""Clock with integer nanoseconds on SimPy's event queue, and the order of events at one instant."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

# Order of events at one instant: engines report, requests arrive, steps complete (by replica), remote KV arrives,
# replicas change state, clients give up, requests that follow from any of these arrive, the router reconsiders its
# waiting requests, schedulers plan (by replica). Dynamo's offline replay also puts arrivals before the ends of steps.
REPORT = -2
ARRIVE = -1
COMPLETE = 0
FOLLOW = 1 << 20
ABORT = FOLLOW - 1
CHANGE = FOLLOW - 2
LOADED = FOLLOW - 3
RECALL = FOLLOW + 1
PLAN = FOLLOW + 2


class Clock(simpy.Environment):
    """SimPy environment whose time is an integer number of nanoseconds."""

    rejected: tuple[int, int] = (-1, -1)
    """(ns, replica) of the last plan that rejected a request. The rejection may cause another request to arrive at that
    instant, after the plans of all replicas up to this one."""

    background = 0
    """Number of recurring events in the queue, which alone do not keep the simulation going."""

    @property
    def goes_on(self) -> bool:
        """Whether any events other than recurring ones are left. Void events also count."""
        return len(self._queue) > self.background

    @property
    def ns(self) -> int:
        """Current time in ns."""
        return self._now  # type: ignore[return-value]

    def at(self, ns: int, order: int, callback: Callable[[Event], None]) -> Event:
        """Call `callback(event)` at `ns`. Among events at one instant, the lowest `order` goes first."""
        event = Event(self)
        event._ok = True
        event._value = None
        event.callbacks.append(callback)
        self.schedule(event, order, ns - self._now)  # type: ignore[arg-type]
        return event
