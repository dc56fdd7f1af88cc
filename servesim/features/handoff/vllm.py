"""vLLM with NIXL: disaggregated prefill and decode, KV pulled by the decode side (vllm/distributed/kv_transfer, July
2026).

1. The proxy sends the request to a prefill engine with max_tokens 1 and, when that has answered, to a decode engine.
2. The prefill engine keeps the blocks until they have been read. If they are not read, they are freed when the lease
   ends: after 30 s, renewed by a decode engine that has the request (PR 41383); before that PR, 480 s without renewal.
3. The decode engine allocates blocks for the whole prompt before the transfer begins (the head of its queue waits for
   them) and keeps the request outside of its queues in the meantime. Blocks in its own prefix cache are not sent.
4. When all KV has arrived, the request is scheduled like a request whose prompt is already computed: the last token is
   recomputed, and the first token that the client sees comes from that step. The token sampled on the prefill side is
   discarded.

A request whose KV is gone fails (since February 2026, PR 34896); before that, the decode engine recomputed it. So it is
if the prefill engine has crashed, also during the transfer (vllm/config/kv_transfer.py of 0.33: kv_load_failure_policy
is "fail" by default; nixl/base_worker.py reports a failed read as failed_recving). If a decode engine crashes, the
leases of what it has not read are not renewed: a heartbeat, sent every sixth of kv_lease_duration (30 s), makes one
last for two thirds of it from then on (nixl/base_scheduler.py, base_worker.py). The last heartbeat is taken to be at
the instant of the crash, up to 5 s late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from simpy.events import Event

from servesim.contracts.params import check_least
from servesim.contracts.request import Request, State
from servesim.contracts.router import Router
from servesim.engine.clock import CHANGE, FOLLOW
from servesim.features.handoff import losses
from servesim.features.handoff.part import Handoff
from servesim.features.handoff.passage import Passage
from servesim.features.handoff.wire import Wire

MS, SECOND = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class VllmNixlParams:
    """Settings of the proxy and of both engines."""

    http_ms: float = 1.0
    """Milliseconds from the prefill engine's answer to the decode engine's queue, through the proxy. Assumed."""
    lease_s: float = 30.0
    """Seconds that blocks are kept without a request from the decode engine."""
    lease_renewed: bool = True
    """Whether a decode engine that has the request renews the lease on its blocks."""
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    """Policy for a request whose KV is gone."""

    def __post_init__(self) -> None:
        check_least(self, 0, "http_ms", "lease_s")


class VllmNixl(Handoff):
    """vLLM's protocol, as described above."""

    name = "vllm-nixl"
    Params = VllmNixlParams

    def __init__(
        self,
        wire: Wire,
        size_of: Callable[[Request, int, int], int],
        decode_router: Router | None = None,
        params: VllmNixlParams | None = None,
    ) -> None:
        super().__init__(wire, size_of, decode_router)
        self._params = params or VllmNixlParams()
        self._http_ns, self._lease_ns = round(self._params.http_ms * MS), round(self._params.lease_s * SECOND)
        self._leases: deque[Passage] = deque()  # by the ends of their leases, of which the clock awaits the first

    def prefilled(self, passage: Passage) -> None:
        self.clock.at(self.clock.ns + self._http_ns, FOLLOW, lambda event: self.to_decode(passage))
        self._leases.append(passage)
        if len(self._leases) == 1:
            self._await_lease()

    def _await_lease(self) -> None:
        self.clock.at(self._leases[0].leg.finished_ns + self._lease_ns, CHANGE, self._lease_ends)

    def _lease_ends(self, event: Event) -> None:
        """End the first lease, and await the next one that matters, or the last one: a run goes on until then."""
        leases = self._leases
        if self._leased(leases[0]):
            self.release(leases[0])
        leases.popleft()
        while len(leases) > 1 and not self._leased(leases[0]):
            leases.popleft()
        if leases:
            self._await_lease()

    def _leased(self, passage: Passage) -> bool:
        """Return whether the end of a lease would free memory. It will not once the memory is reserved, or a decode
        engine renews the lease."""
        renewed = self._params.lease_renewed and passage.sent_ns >= 0
        return passage.leg in self._held and passage.reserved_ns < 0 and not renewed

    def reserve(self, request: Request, start: int, stop: int) -> None:
        super().reserve(request, start, stop)
        passage = self.passages[request]
        if passage.leg.state is State.FINISHED and not passage.prefilled:
            self.source_lost(passage)

    def load_fails(self, passage: Passage, event: Event) -> None:
        if self._params.kv_load_failure_policy == "fail":
            super().load_fails(passage, event)
        else:
            losses.load_fails(self, passage, "")

    def unread(self, passage: Passage, told: bool) -> None:
        """Keep the memory at the source until its lease ends."""
        now, ends = self.clock.ns, passage.leg.finished_ns + self._lease_ns
        if told and self._params.lease_renewed:
            ends = max(ends, now + self._lease_ns * 2 // 3)
        if passage.leg in self._held:
            self.clock.at(max(ends, now), CHANGE, lambda event: self.release(passage))
