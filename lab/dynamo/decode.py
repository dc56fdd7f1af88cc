"""Decode worker of Dynamo's simulator (ai-dynamo-runtime 1.6.1): computed prompts arrive over the network.

Only servesim_lab.dynamo.pd uses it. What happens at the end of a pass, in this order (lib/mocker,
src/scheduler/vllm/core.rs, which the crate aisimulate-core 0.13.0 has):

1. The first request that waits for memory for its KV is given it if there is enough. A worker that has no request
   does so when one comes, and one whose requests all wait does so as long as there is enough.
2. KV that has arrived can be found in the prefix cache; after each arrival, in their order, the first request that
   waits for memory is tried as in 1. One that was tried is not tried again before memory has been freed by a request
   that ended or was preempted.
3. All active requests decode; if memory is short, those that became active last are preempted.
4. If none was preempted, others become active: first those preempted before, then those whose KV has arrived, in the
   order in which they were given memory. The former are computed again here, in no time, but only while no request
   waits for memory for its KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.policies.scheduling.vllm import Vllm


class MockerDecode(Vllm):
    """Scheduler of the decode worker, as described above."""

    name = "mocker-decode"

    def __init__(self, params: Any, limits: Any, kv: Any) -> None:
        super().__init__(params, limits, kv)
        self.reserving: list[Request] = []
        """Requests that wait for memory for their KV."""
        self.loading: list[Request] = []
        """Requests that have memory for KV on its way."""
        self.arriving: dict[Request, Callable[[], None]] = {}
        """Functions that let the KV that has arrived since the last plan be found, by request."""
        self.come: list[Request] = []
        """Requests whose KV has arrived, before they are active."""
        self.activated_ns: dict[int, int] = {}
        """Time of step 2, by row."""
        self._tried: tuple[Request | None, int] = (None, 0)  # the last one that was tried, and `_freed` then
        self._freed = 0
        self._had: list[Request] = []  # active after the last plan: in the pass that has ended
        self._new = 0  # requests that have come since the last plan

    def plan(self, ctx: PlanContext) -> Plan:
        self._freed += any(request.state >= State.FINISHED for request in self._had)
        for _ in range(1 if self._had or self.waiting or self.come else self._new):
            self._give_memory(ctx)
        self._new = 0
        for request, found in self.arriving.items():
            self.activated_ns[request.row] = ctx.now
            found()
            self._give_memory(ctx)
        self.come += sorted(self.arriving, key=self.loading.index)
        for request in self.arriving:
            self.loading.remove(request)
        self.arriving.clear()
        plan = super().plan(ctx)
        self._freed += bool(plan.preempted)
        self._had = list(self.running)
        return plan

    def _give_memory(self, ctx: PlanContext) -> None:
        """Give memory to the first request that waits for it, unless it was tried since memory was last freed."""
        if not self.reserving or self._tried == (self.reserving[0], self._freed):
            return
        request = self.reserving[0]
        self._tried = request, self._freed
        if len(self.running) < self._max_running and ctx.fetch(request, ctx.lookup(request)):
            self.loading.append(self.reserving.pop(0))

    def _plan_waiting(self, ctx: PlanContext, budget: Any, threshold: int) -> None:
        come = self.come
        if not self.reserving:
            self.come = []
            super()._plan_waiting(ctx, budget, threshold)
            self.come = come
            if self.waiting:
                return  # the others are behind it
        while come and len(self.running) < self._max_running and ctx.admit(come[0], 1):
            self.running.append(come.pop(0))

    def on_arrival(self, request: Request) -> None:
        if request not in self.arriving:
            self.reserving.append(request)
            self._new += 1

    def drop_waiter(self, request: Request) -> None:
        for queue in (self.come, self.reserving):
            if request in queue:
                queue.remove(request)
                return
        super().drop_waiter(request)

    def waiters(self) -> Iterator[Request]:
        return chain(self.come, self.waiting, self.reserving)

    def num_waiting(self) -> int:
        return len(self.come) + len(self.waiting) + len(self.reserving)
