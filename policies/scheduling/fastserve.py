"""Skip-join multi-level feedback queue (FastServe, arXiv 2305.05920).

The scheduler learns which answers are short by running requests: a request is demoted when it has used up its queue's
quantum, and starts in the queue whose quantum fits its prefill, skipping those above. Preemption happens between tokens
and keeps the KV; if memory is short, the requests that will wait longest before they run again move to host memory in
advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servesim.contracts import KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.params import SchedulerParams, check_least, check_share
from servesim.contracts.scheduler import schedulers

from ._common import pending, refuse_if_hopeless


@dataclass(frozen=True)
class FastServeParams(SchedulerParams):
    """FastServe's settings. Time is measured in decode iterations; one iteration is the paper's shortest quantum."""

    num_queues: int = 8
    """Number of queues in the multi-level feedback queue."""
    quantum: int = 1
    """Quantum of the highest queue."""
    quantum_ratio: int = 2
    """Ratio of each queue's quantum to the quantum of the queue above."""
    tokens_per_iteration: int = 256
    """Number of prompt tokens whose prefill takes as long as one decode iteration, from a profile of the engine."""
    starve_limit: int = 1000
    """Iterations without running after which a request is promoted to the highest queue."""
    free_fraction: float = 0.05
    """Share of memory kept free for new requests by swapping others out in advance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "num_queues", "quantum", "quantum_ratio", "tokens_per_iteration", "starve_limit")
        check_share("free_fraction", self.free_fraction)


@dataclass(slots=True)
class _Job:
    """A request's place in the queues."""

    queue: int
    since: int
    """Scheduler iteration at which the request entered its queue; each queue is served first come, first served."""
    used: int = 0
    """Number of iterations already used of the request's quantum."""
    ran: int = 0
    """Iteration in which the request last ran, or in which it arrived."""


@schedulers.register("fastserve")
class FastServe(Scheduler):
    """Scheduler that runs up to max_num_seqs requests from the highest queues in each iteration."""

    Params = FastServeParams
    supports = frozenset({"swap"})
    paper = "Wu et al., Fast Distributed Inference Serving for Large Language Models, arXiv 2305.05920"
    params: FastServeParams

    def __init__(self, params: FastServeParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.jobs: dict[Request, _Job] = {}
        self.iteration = 0
        self._next_step = 0  # id of the step after the last one planned
        self.keep_free = int(params.free_fraction * kv.capacity_tokens)

    def plan(self, ctx: PlanContext) -> Plan:
        self._catch_up(ctx.step_id - self._next_step)
        self.iteration += 1
        self._promote_starved()
        ranked = sorted(self.jobs, key=self._rank)
        left = self._decode(ctx, ranked)
        served = ranked[: len(ranked) - len(left)]
        budget = self.limits.max_num_batched_tokens - len(served)
        holders = [(i, r) for i, r in enumerate(left) if r.state is State.RUNNING and pending(r)] if left else []
        for i, request in enumerate(left):
            if len(ctx.plan.tokens) == self.limits.max_num_seqs or budget <= 0:
                break
            if request.state is State.RUNNING and not pending(request):
                continue  # in flight
            budget -= self._run(ctx, request, i, holders, budget)
        tokens = ctx.plan.tokens if left else dict.fromkeys(served, 1)
        for request in tokens:
            self._account(request, tokens[request])
        if left:
            self._swap_ahead(ctx, ranked)
        self._next_step = ctx.step_id + (ctx.num_tokens > 0)
        return ctx.plan

    def _decode(self, ctx: PlanContext, ranked: list[Request]) -> Sequence[Request]:
        """Serve requests in bulk while all of them run in every iteration, because queues then affect only their order.
        Return the requests not served."""
        limits = self.limits
        most = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        if self.waiting or not ranked or len(ranked) > most:
            return ranked
        until_demotion = min(self._quantum(job.queue) - job.used for job in self.jobs.values())
        return ctx.decode(ranked, most, steps=until_demotion - 1)

    def _catch_up(self, steps: int) -> None:
        """Account for bulk-planned iterations, in which all requests ran."""
        self.iteration += steps
        for request in self.running if steps else ():
            job = self.jobs[request]
            job.used += steps
            job.ran = self.iteration

    def _rank(self, request: Request) -> tuple[int, int, int]:
        job = self.jobs[request]
        return job.queue, job.since, request.row

    def _run(
        self, ctx: PlanContext, request: Request, place: int, holders: list[tuple[int, Request]], budget: int
    ) -> int:
        """Run as much of a request as possible. If memory is short, evict the `holders` ranked below it, last first,
        and remove them from the list. Return the number of scheduled tokens."""
        while not self._start(ctx, request, budget):
            if not holders or holders[-1][0] <= place:
                return 0
            if not self._evict(ctx, holders[-1][1], request.state is State.RUNNING):
                return 0
            holders.pop()
        return ctx.plan.tokens.get(request, 0)

    def _start(self, ctx: PlanContext, request: Request, budget: int) -> bool:
        """Schedule a request; return False if memory is short."""
        if request.state is State.RUNNING:
            return ctx.extend(request, min(pending(request), budget))
        if request.state is State.SWAPPED:
            if not ctx.swap_in(request, min(pending(request), budget)):
                return False
        else:
            hit = ctx.lookup(request)
            if not ctx.admit(request, min(request.num_tokens - hit.num_tokens, budget), hit):
                if refuse_if_hopeless(self, ctx, request):
                    del self.jobs[request]
                    return True
                return False
        self.waiting.remove(request)
        self.running.append(request)
        return True

    def _evict(self, ctx: PlanContext, victim: Request, at_any_cost: bool) -> bool:
        """Free a request's memory by swapping it to the host. If host memory is full, discard the KV if `at_any_cost`
        (to make room for a running request); otherwise return False, and the request that needs the memory waits."""
        if not ctx.swap_out(victim):
            if not at_any_cost:
                return False
            ctx.preempt(victim)
        self.running.remove(victim)
        self.waiting.append(victim)
        return True

    def _swap_ahead(self, ctx: PlanContext, ranked: Sequence[Request]) -> None:
        """Swap out requests that are not in this plan, starting with those that will run last (at the end of the lowest
        queue), until new requests have room."""
        for victim in reversed(ranked):
            if self.kv.usage().free >= self.keep_free:
                break
            if victim.state is not State.RUNNING or victim in ctx.plan.tokens or not pending(victim):
                continue
            if not ctx.swap_out(victim):
                break
            self.running.remove(victim)
            self.waiting.append(victim)

    # Queues.

    def _quantum(self, queue: int) -> int:
        return int(self.params.quantum * self.params.quantum_ratio**queue)

    def _queue_for(self, iterations: int, above: int = 0) -> int:
        """Return the highest queue, from queue `above` down, whose quantum covers `iterations`; if none does, return
        the lowest."""
        last = self.params.num_queues - 1
        queue = min(above, last)
        while queue < last and self._quantum(queue) < iterations:
            queue += 1
        return queue

    def _prefill_iterations(self, tokens: int) -> int:
        return -(-tokens // self.params.tokens_per_iteration)

    def _account(self, request: Request, tokens: int) -> None:
        job = self.jobs[request]
        job.ran = self.iteration
        job.used += self._prefill_iterations(tokens)
        if job.used >= self._quantum(job.queue):
            lowest = self.params.num_queues - 1
            job.queue, job.since, job.used = min(job.queue + 1, lowest), self.iteration, 0

    def _promote_starved(self) -> None:
        for job in self.jobs.values():
            if job.queue and self.iteration - job.ran > self.params.starve_limit:
                job.queue, job.since, job.used, job.ran = 0, self.iteration, 0, self.iteration

    def on_arrival(self, request: Request) -> None:
        super().on_arrival(request)
        queue = self._queue_for(self._prefill_iterations(request.prompt_len))
        self.jobs[request] = _Job(queue, self.iteration, 0, self.iteration)

    def on_finish(self, requests: Sequence[Request]) -> None:
        super().on_finish(requests)
        for request in requests:
            del self.jobs[request]

    def waiters(self) -> Iterator[Request]:
        return iter(sorted(self.waiting, key=self._rank))
