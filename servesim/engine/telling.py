"""Notifications to a router about its requests and replicas. Only the methods that its class overrides are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servesim.contracts.kv_events import AllBlocksCleared, KVEvent
from servesim.contracts.part import Part
from servesim.contracts.request import FINISHED, Request, State
from servesim.contracts.router import FinishStatus, ReplicaState, Router
from servesim.engine.clock import Clock

LOST = "its replica failed"
"""Failure reason of a request that was lost with its replica."""


class Telling(Part):
    """Part that notifies a router. After each notification, `recall` makes the router reconsider its waiting requests.

    `forks` means that additional samples of a request are forked from the first one, so the router sees them all as one
    request.
    """

    def __init__(self, router: Router, clock: Clock, recall: Callable[[], None], *, forks: bool) -> None:
        self._router, self._recall = router, recall
        self._told = router.hears()
        router.clock = lambda: clock.ns
        self._tells_finish = "on_finish" in self._told
        self._forks = forks
        self._block = router.output_block

    def wants(self, verb: str) -> bool:
        return super().wants(verb) and (verb != "sent" or "on_sent" in self._told)

    def sent(self, request: Request, output_len: int, index: int) -> None:
        self._router.on_sent(request, index)

    def core_made(self, replica: Any) -> None:
        """Subscribe the router to the events of a replica's core that it handles."""
        core, told = replica.core, self._told
        if "on_prefill_done" in told:
            core.on_first = self._first
        if "on_output_block" in told:
            core.step_plainly()
            core.on_output = self._output
        if "on_kv_events" in told and core.kv.shares:
            replica.listen(self._cached if self._router.tiers else self._cached_on_gpu)

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Notify the router of a change in a replica's state."""
        if "on_replica" in self._told:
            self._router.on_replica(index, state)
        self._recall()

    def finish(self, request: Request) -> None:
        """Notify the router that a request has left its replica or was lost with it."""
        self._recall()
        if not self._tells_finish:
            return
        parent, lost = request.parent, request.reason == LOST
        if parent is not None and self._forks:
            if parent.num_gone < len(parent.sent) and not lost:
                return
            request = parent.members[0]
        status: FinishStatus = "finished" if request.state is FINISHED else "cancelled"
        if lost or request.state is State.REJECTED:
            status = "failed"
        self._router.on_finish(request, request.replica, status)

    def dropped(self, request: Request) -> None:
        """Notify the router that a request has left its queue without being sent."""
        self._recall()
        if "on_dropped" in self._told:
            self._router.on_dropped(request)

    def _first(self, request: Request) -> None:
        if request.replica >= 0:
            self._router.on_prefill_done(request, request.replica)
            self._recall()

    def _output(self, request: Request, delivered: int) -> None:
        block, tokens = self._block, request.num_tokens
        if request.replica >= 0:
            for _ in range(-(-(tokens - delivered) // block), -(-tokens // block)):
                self._router.on_output_block(request, request.replica)
                self._recall()

    def _cached(self, replica: int, ns: int, event: KVEvent) -> None:
        self._router.on_kv_events(replica, (event,))
        self._recall()

    def _cached_on_gpu(self, replica: int, ns: int, event: KVEvent) -> None:
        if isinstance(event, AllBlocksCleared) or event.medium == "gpu":
            self._cached(replica, ns, event)
