"""Virtual token counter: waiting requests of the least-served tenant go first (Sheng et al., OSDI 2024).

The steps are vLLM V1's; only the order of waiting requests is VTC's. Requests without a tenant together count as one
tenant. The paper's predicting and weighted variants are not modeled; a request that is recomputed after a preemption is
not charged again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servesim.contracts import KVAllocator, Limits, Plan, PlanContext, Request
from servesim.contracts.params import SchedulerParams, check_least
from servesim.contracts.scheduler import schedulers

from ._vllm_params import VllmParams
from .vllm import Vllm


@dataclass(frozen=True)
class VtcParams(SchedulerParams):
    """vLLM's limits, and the weights of tokens, with the paper's defaults."""

    input_weight: float = 1.0
    """Weight of a prompt token, charged at admission."""
    output_weight: float = 2.0
    """Weight of an output token, charged as it is produced."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "input_weight", "output_weight")


@schedulers.register("vtc")
class Vtc(Vllm):
    """Scheduler that counts the service each tenant receives. A tenant that had no waiting requests restarts at the
    lowest counter among tenants that have some or, if none has, at the counter of the tenant served last, so that it
    cannot save up credit."""

    Params = VtcParams
    paper = "Sheng et al., Fairness in Serving Large Language Models, OSDI 2024"
    supports = frozenset({"async"})

    def __init__(self, params: VtcParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(VllmParams(params.max_num_seqs, params.max_num_batched_tokens), limits, kv)
        self.params = params
        self.counters: dict[str, float] = {}
        """Weighted token count of each tenant; outputs are counted up to the last plan that found a request waiting."""
        self._queues: dict[str, deque[Request]] = {}  # for tenants with waiting requests
        self._come: list[Request] = []  # arrived since the last plan
        self._counted: dict[Request, int] = {}  # output tokens already counted, by running request
        self._last = ""  # the tenant served last

    def plan(self, ctx: PlanContext) -> Plan:
        if self.num_waiting():
            _ = ctx.now  # counters change with every token, so skip no plan
            for request in self.running:
                self._count(request)
            for request in self._come:
                self._queue(request)
            self._come.clear()
        return super().plan(ctx)

    def _count(self, request: Request) -> None:
        new = request.num_output_tokens - self._counted.get(request, 0)
        if new:
            self._counted[request] = request.num_output_tokens
            self._charge(request.tenant, self.params.output_weight * new)

    def _charge(self, tenant: str, amount: float) -> None:
        self.counters[tenant] = self.counters.get(tenant, 0.0) + amount

    def _queue(self, request: Request) -> None:
        tenant = request.tenant
        if tenant not in self._queues:
            others = [self.counters[other] for other in self._queues]
            least = min(others) if others else self.counters.get(self._last, 0.0)
            self.counters[tenant] = max(self.counters.get(tenant, 0.0), least)
        self._queues.setdefault(tenant, deque()).append(request)

    def _requeue(self, request: Request) -> None:
        """Put a preempted request first in its tenant's queue."""
        self._queues.setdefault(request.tenant, deque()).appendleft(request)

    def _first(self) -> str:
        """Return the tenant with the lowest counter; ties go to the tenant whose first waiting request arrived
        earliest."""
        queues = self._queues
        return min(queues, key=lambda t: (self.counters[t], queues[t][0].arrival_ns, queues[t][0].row))

    def _head(self) -> Request:
        return self._queues[self._first()][0]

    def _pop_head(self) -> None:
        tenant = self._first()
        request = self._queues[tenant].popleft()
        if not self._queues[tenant]:
            del self._queues[tenant]
        if request not in self._counted:
            self._counted[request] = 0
            self._charge(tenant, self.params.input_weight * request.prompt_len)
        self._last = tenant

    def on_arrival(self, request: Request) -> None:
        self._come.append(request)

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request] | None:
        for request in requests:
            if request in self._counted:
                self._count(request)
                del self._counted[request]
        return super().on_finish(requests)

    def drop_waiter(self, request: Request) -> None:
        if request in self._come:
            self._come.remove(request)
            return
        queue = self._queues[request.tenant]
        queue.remove(request)
        if not queue:
            del self._queues[request.tenant]

    def waiters(self) -> Iterator[Request]:
        found = [request for queue in self._queues.values() for request in queue] + self._come
        return iter(sorted(found, key=lambda request: (request.arrival_ns, request.row)))

    def num_waiting(self) -> int:
        return len(self._come) + sum(len(queue) for queue in self._queues.values())
