"""Skip-join multi-level feedback queue (FastServe, arXiv 2305.05920).

The scheduler learns which answers are short by running requests: a request is demoted when it has used up its queue's
quantum, and starts in the queue whose quantum fits its prefill, skipping those above. Preemption happens between tokens
and keeps the KV; if memory is short, the requests that will wait longest before they run again move to host memory in
advance.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

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
    watched: bool = False
    """Whether the request is among those that may starve."""


_Place = tuple[int, int, int, Request]
"""Queue, iteration at which the request entered it, row, and the request: the lowest runs first."""


@schedulers.register("fastserve")
class FastServe(Scheduler):
    """Scheduler that runs up to max_num_seqs requests from the highest queues in each iteration."""

    Params = FastServeParams
    supports = frozenset({"swap"})
    paper = "Wu et al., Fast Distributed Inference Serving for Large Language Models, arXiv 2305.05920"
    params: FastServeParams

    def __init__(self, params: FastServeParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.waiting: dict[Request, None] = {}
        self.jobs: dict[Request, _Job] = {}
        self._order: list[_Place] = []  # all jobs, the next to run first
        self._watched: list[tuple[int, int, Request]] = []  # heap of jobs below the highest queue: (ran, row, request)
        self.iteration = 0
        self._next_step = 0  # id of the step after the last one planned
        self.keep_free = int(params.free_fraction * kv.capacity_tokens)

    def plan(self, ctx: PlanContext) -> Plan:
        self._catch_up(ctx.step_id - self._next_step)
        self.iteration += 1
        self._promote_starved()
        served = self._decode(ctx)
        if served and len(served) == len(self._order):
            tokens = dict.fromkeys(served, 1)
        else:
            self._run_each(ctx, len(served))
            self._swap_ahead(ctx)
            tokens = ctx.plan.tokens
        for request in tokens:
            self._account(request, tokens[request])
        self._next_step = ctx.step_id + (ctx.num_tokens > 0)
        return ctx.plan

    def _decode(self, ctx: PlanContext) -> list[Request]:
        """Serve requests in bulk while all of them run in every iteration, because queues then affect only their order.
        Return the requests served."""
        limits = self.limits
        most = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        if self.waiting or not self._order or len(self._order) > most:
            return []
        ranked = [request for *_, request in self._order]
        until_demotion = min(self._quantum(job.queue) - job.used for job in self.jobs.values())
        left = ctx.decode(ranked, most, steps=until_demotion - 1)
        return ranked[: len(ranked) - len(left)]

    def _run_each(self, ctx: PlanContext, served: int) -> None:
        """Run requests in order while there is room, besides the first `served`."""
        budget, last = self.limits.max_num_batched_tokens - served, len(self._order) - 1
        refused = []
        for at, (*_, request) in enumerate(islice(self._order, served, None), served):
            if len(ctx.plan.tokens) == self.limits.max_num_seqs or budget <= 0:
                break
            if request.state is State.RUNNING and not pending(request):
                continue  # in flight
            last = self._run(ctx, at, last, budget)
            budget -= ctx.plan.tokens.get(request, 0)
            if request.state is State.REJECTED:
                refused.append(request)
        for request in refused:
            self._leave(request)

    def _catch_up(self, steps: int) -> None:
        """Account for bulk-planned iterations, in which all requests ran."""
        self.iteration += steps
        for request in self.running if steps else ():
            job = self.jobs[request]
            job.used += steps
            job.ran = self.iteration

    def _place(self, request: Request) -> _Place:
        job = self.jobs[request]
        return job.queue, job.since, request.row, request

    def _run(self, ctx: PlanContext, at: int, last: int, budget: int) -> int:
        """Run as much of the request at place `at` as possible. If memory is short, evict those that hold some and are
        ranked below it, last first. None after place `last` holds any; return the new such place."""
        request = self._order[at][-1]
        while not self._start(ctx, request, budget):
            while last > at and not self._holds(self._order[last][-1]):
                last -= 1
            if last <= at or not self._evict(ctx, self._order[last][-1], request.state is State.RUNNING):
                return last
        return last

    def _holds(self, request: Request) -> bool:
        """Return whether a request holds memory that may be taken from it."""
        return request.state is State.RUNNING and pending(request) > 0

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
                return refuse_if_hopeless(self, ctx, request)
        del self.waiting[request]
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
        self.waiting[victim] = None
        return True

    def _swap_ahead(self, ctx: PlanContext) -> None:
        """Swap out requests that are not in this plan, starting with those that will run last (at the end of the lowest
        queue), until new requests have room."""
        for *_, victim in reversed(self._order):
            if self.kv.usage().free >= self.keep_free:
                break
            if victim in ctx.plan.tokens or not self._holds(victim):
                continue
            if not ctx.swap_out(victim):
                break
            self.running.remove(victim)
            self.waiting[victim] = None

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
            self._move(request, min(job.queue + 1, self.params.num_queues - 1))

    def _move(self, request: Request, queue: int) -> None:
        """Put a request last in a queue, with a whole quantum."""
        del self._order[bisect_left(self._order, self._place(request))]
        job = self.jobs[request]
        job.queue, job.since, job.used = queue, self.iteration, 0
        self._enter(request, job)

    def _enter(self, request: Request, job: _Job) -> None:
        insort(self._order, self._place(request))
        if job.queue and not job.watched:
            job.watched = True
            heappush(self._watched, (job.ran, request.row, request))

    def _leave(self, request: Request) -> None:
        del self._order[bisect_left(self._order, self._place(request))]
        del self.jobs[request]

    def _promote_starved(self) -> None:
        watched, since = self._watched, self.iteration - self.params.starve_limit
        while watched and watched[0][0] < since:
            _, row, request = heappop(watched)
            job = self.jobs.get(request)
            if job is None:
                continue
            if job.queue and job.ran >= since:
                heappush(watched, (job.ran, row, request))
                continue
            job.watched = False
            if job.queue:
                job.ran = self.iteration
                self._move(request, 0)

    def on_arrival(self, request: Request) -> None:
        self.waiting[request] = None
        queue = self._queue_for(self._prefill_iterations(request.prompt_len))
        job = self.jobs[request] = _Job(queue, self.iteration, 0, self.iteration)
        self._enter(request, job)

    def on_finish(self, requests: Sequence[Request]) -> None:
        super().on_finish(requests)
        for request in requests:
            self._leave(request)

    def drop_waiter(self, request: Request) -> None:
        if request not in self.waiting:
            raise ValueError(f"{request} is not there")
        del self.waiting[request]

    def waiters(self) -> Iterator[Request]:
        return iter(sorted(self.waiting, key=self._place))
