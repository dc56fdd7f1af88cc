"""Decode worker of Dynamo's simulator (ai-dynamo-runtime 1.6.1): computed prompts arrive over the network.

Only servesim_lab.dynamo.pd uses it. At each pass boundary, requests whose KV has arrived become active first. Then up
to that number of waiting requests plus one may allocate memory for their KV, first come, first served. Then all active
requests decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request
from servesim.policies.scheduling.vllm import Vllm


class MockerDecode(Vllm):
    """Scheduler of the decode worker, as described above. Preempted requests are recomputed here, as in vLLM."""

    name = "mocker-decode"

    def __init__(self, params: Any, limits: Any, kv: Any) -> None:
        super().__init__(params, limits, kv)
        self.come: list[Request] = []
        """Requests whose KV has arrived since the last plan."""
        self.reserving: list[Request] = []
        """Requests that wait for memory for their KV."""

    def plan(self, ctx: PlanContext) -> Plan:
        active = self.come
        self.come = []
        for request in active:
            if not ctx.admit(request, 1):
                self.come.append(request)
                continue
            ctx.unschedule(request)  # it decodes after earlier ones, and may be preempted
            self.running.append(request)
        self._reserve_for(ctx, 1 + len(active))
        return super().plan(ctx)

    def _reserve_for(self, ctx: PlanContext, most: int) -> None:
        for request in self.reserving[:most]:
            if not ctx.fetch(request, ctx.lookup(request)):
                return
            self.reserving.remove(request)

    def on_arrival(self, request: Request) -> None:
        if request.num_computed_tokens:
            self.come.append(request)
        else:
            self.reserving.append(request)

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

    def _plan_waiting(self, ctx: PlanContext, budget: Any, threshold: int) -> None:
        others, self.come, self.reserving = (self.come, self.reserving), [], []
        super()._plan_waiting(ctx, budget, threshold)
        self.come, self.reserving = others
