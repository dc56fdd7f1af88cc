"""Requests that go straight to a decode replica, which computes their prompts, and those whose decode replica is chosen
before a prefill replica computes their prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.decider import Decider, Outlook
from servesim.contracts.request import Request, State
from servesim.engine import turnover
from servesim.engine.telling import LOST

if TYPE_CHECKING:
    from servesim.features.handoff.part import Handoff
    from servesim.features.handoff.passage import Passage


class Straight:
    """The decider of a run, and its decisions. The decode router must exist."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.rows: list[int] = []
        """Rows of the requests that decode replicas served alone and that have left."""
        self._there: dict[Request, int] = {}  # requests that went straight: decode replica
        self._promised: dict[Request, int] = {}  # requests that wait for a prefill replica: decode replica

    def join(self, handoff: Handoff) -> None:
        """Attach to this handoff."""
        assert handoff.decode_router is not None
        self._handoff, self._router = handoff, handoff.decode_router
        self._router.selective = True

    def sends(self, request: Request, output_len: int) -> bool:
        """Send a request to a decode replica if this is decided; return whether it is."""
        handoff, cluster = self._handoff, self._handoff.cluster
        decode = handoff.choose(request)
        if decode < 0:
            return False
        if self.decider.apart(request, self._outlook(request, decode)):
            if self.decider.reserves:
                self._promised[request] = decode
                handoff.tell_sent(request, output_len, decode)
            return False
        handoff.passages.pop(request, None)  # of an attempt that was lost
        self._there[request] = request.replica = decode
        handoff.tell_sent(request, output_len, decode)
        cluster.tell_passed_on(request, output_len, decode)
        if cluster.reaches(request, decode):
            cluster.replicas[decode].arrive(request, output_len)
        return True

    def _outlook(self, request: Request, decode: int) -> Outlook:
        cluster = self._handoff.cluster
        ready = cluster.fleet.views.ready if cluster.fleet.offer(request) else ()
        views = cluster.fleet.views
        prefill = [views[index] for index in ready if views[index].role == "prefill"]
        waiting = cluster.waiting.num_waiting + sum(view.num_waiting + view.num_unread for view in prefill)
        uncached = request.num_tokens - self._router.cached_tokens(request, decode)
        return Outlook(max(uncached, 0), views[decode], prefill, waiting)

    def promised(self, request: Request, decode: int) -> int:
        """Return the decode replica that was chosen for a request whose prompt is now sent to a prefill replica, or -1
        if there is none, the prefill router has chosen one (`decode`), or it is down or not ready any more."""
        promised = self._promised.get(request, -1)
        if promised >= 0 and decode < 0:
            replica = self._handoff.cluster.replicas[promised]
            if replica.up and replica.state == "ready":
                return self._promised.pop(request)
        self.release(request)
        return -1

    def release(self, request: Request) -> None:
        """Give up the decode replica that was chosen for a request, if there is one."""
        promised = self._promised.pop(request, -1)
        if promised >= 0:
            self.withdraw(request, promised)

    def withdraw(self, request: Request, decode: int) -> None:
        """Notify the decode router that a request which it has counted at a replica does not come."""
        replica, request.replica = request.replica, decode
        assert self._handoff.telling is not None
        self._handoff.telling.finish(request)
        request.replica = replica

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these requests, whose records are complete, went straight to a decode replica, and forget
        those that have left."""
        straight = np.isin(rows, [*self.rows, *(request.row for request in self._there)])
        self.rows = [*{*self.rows}.difference(rows.tolist())]
        return straight

    def lost(self, request: Request) -> None:
        """Handle a request that was lost with the decode replica to which it went straight, if it did."""
        if self._there.pop(request, -1) >= 0:
            request.state, request.reason = State.ABORTED, LOST
            assert self._handoff.telling is not None
            self._handoff.telling.finish(request)

    def left(self, request: Request, passage: Passage | None) -> None:
        """Handle the departure of a request."""
        self.release(request)
        if passage is not None and passage.promised:
            self.withdraw(request, passage.decode)
        decode = self._there.pop(request, -1)
        if decode >= 0:
            turnover.left_draining(self._handoff.cluster, decode)
            if self._handoff.has_end:
                self.rows.append(request.row)
