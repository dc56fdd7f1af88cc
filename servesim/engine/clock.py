"""Clock with integer nanoseconds on SimPy's event queue, and the order of events at one instant."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from operator import attrgetter
from typing import cast

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


class _Call(Event):
    """Event that is triggered when it is made, and has one callback."""

    __slots__ = ("callbacks",)
    _ok, _value = True, None

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self.callbacks = [callback]


class Clock(simpy.Environment):
    """SimPy environment whose time is an integer number of nanoseconds."""

    rejected: tuple[int, int] = (-1, -1)
    """(ns, replica) of the last plan that rejected a request, or whose prefix cache has a listener. Either may cause a
    request to arrive at that instant, after the plans of all replicas up to this one."""

    background = 0
    """Number of recurring events in the queue, which alone do not keep the simulation going."""

    @property
    def goes_on(self) -> bool:
        """Whether any events other than recurring ones are left. Void events also count."""
        return len(self._queue) > self.background

    ns: int = cast(int, property(attrgetter("_now")))  # a getter in C, because it is read for each event
    """Current time in ns."""

    def at(self, ns: int, order: int, callback: Callable[[Event], None]) -> Event:
        """Call `callback(event)` at `ns`. Among events at one instant, the lowest `order` goes first."""
        event = _Call(callback)
        heappush(self._queue, (ns, order, next(self._eid), event))  # type: ignore[misc]
        return event
