"""Integer nanoseconds on SimPy's event queue, and the order of events at one instant."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

# At one instant: engines report, requests arrive, steps complete (by replica), KV comes from elsewhere, replicas change
# their states, clients give up, requests arrive that follow from any of that, those that wait in the router are asked
# for again, schedulers plan (by replica). That arrivals come before the ends of steps is as in Dynamo's offline replay.
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
    """A SimPy environment whose time is a whole number of nanoseconds."""

    rejected: tuple[int, int] = (-1, -1)
    """(ns, replica) of the last plan that rejected a request, which may make another one arrive at that instant: after
    the plans of all replicas up to that one."""

    background = 0
    """Events in the queue that only come again and again, and keep nothing going by themselves."""

    @property
    def goes_on(self) -> bool:
        """Whether anything may happen but for what comes again and again: events that are void count, too."""
        return len(self._queue) > self.background

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
