"""Continuous batching with separate prefill and decode iterations (vLLM V0: vllm/core/scheduler.py, 0.6).

Prefill first: whenever waiting prompts fit, they run alone and all decodes stall. On a shortage of blocks, the latest
request to arrive is preempted, by recomputation or by swapping to host memory; swapped-out requests return before any
new one is admitted. Samples of a request (n > 1) are forked when its prompt is computed; they are preempted and return
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import ClassVar

from servesim.contracts import Defaults, KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.params import SchedulerParams, check_share
from servesim.contracts.request import SampleForm
from servesim.contracts.scheduler import schedulers

from ._common import one_block_free, pending, refuse_if_hopeless, watermark


@dataclass(frozen=True)
class ContinuousParams(SchedulerParams):
    """vLLM V0's settings. If unset: 256 sequences, and max_model_len tokens but at least 2,048."""

    watermark: float = 0.01
    """Fraction of the blocks that admissions and swap-ins leave free."""
    preemption_mode: str = "recompute"
    """Preemption mode: "recompute" (V0's choice for requests with one sequence; others are swapped) or "swap"."""
    reserve_output: bool = False
    """Whether admissions reserve memory for the longest possible output, so that no request is preempted (TGI)."""
    enable_chunked_prefill = False  # no setting: prompts run whole

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preemption_mode not in ("recompute", "swap"):
            raise ValueError(f'preemption_mode must be "recompute" or "swap", not "{self.preemption_mode}"')
        check_share("watermark", self.watermark)


@schedulers.register("continuous")
class Continuous(Scheduler):
    """vLLM V0's default scheduler. If host memory is full, it recomputes requests instead of swapping them out (V0
    fails)."""

    Params = ContinuousParams
    supports = frozenset({"swap"})
    samples: ClassVar[SampleForm] = "fork"
    paper = "Kwon et al., PagedAttention, SOSP 2023"
    params: ContinuousParams

    def __init__(self, params: ContinuousParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.swapped: deque[Request] = deque()
        self.reserve = watermark(kv, params.watermark)
        self._reserves = params.reserve_output and not kv.reserves
        if params.reserve_output:
            self.samples = "children"  # type: ignore[misc]  # TGI's best_of is as many requests
        self._several = False  # whether samples may have to be forked

    @classmethod
    def complete(cls, params: ContinuousParams, defaults: Defaults) -> ContinuousParams:
        tokens = params.max_num_batched_tokens or max(2048, defaults.max_model_len)
        return replace(params, max_num_batched_tokens=tokens, max_num_seqs=params.max_num_seqs or 256)

    def plan(self, ctx: PlanContext) -> Plan:
        if not self.swapped:
            self._prefill(ctx)
        if not ctx.plan.tokens:
            self._decode(ctx)
            if self.swapped and not ctx.plan.preempted:
                self._swap_in(ctx)
        return ctx.plan

    def _prefill(self, ctx: PlanContext) -> None:
        budget = self.limits.max_num_batched_tokens
        while self.waiting:
            request = self.waiting[0]
            if self._never(request):
                ctx.reject(
                    self.waiting.popleft(), "the prompt does not fit in the memory above the watermark, or in one step"
                )
                continue
            hit = ctx.lookup(request)
            new = request.num_tokens - hit.num_tokens
            if new > budget or self._sequences() + request.num_sequences > self.limits.max_num_seqs:
                return
            output = request.prompt_len + request.max_tokens - request.num_tokens if self._reserves else 0
            if not ctx.admit(request, new, hit, reserve=self.reserve, lookahead=output):
                if refuse_if_hopeless(self, ctx, request):
                    continue
                return
            self.running.append(self.waiting.popleft())
            budget -= new

    def _never(self, request: Request) -> bool:
        size = self.kv.block_size
        needed = -(-request.num_tokens // size) * size
        too_big = needed + self.reserve > self.kv.capacity_tokens
        too_many = request.num_sequences > self.limits.max_num_seqs
        return too_big or too_many or request.num_tokens > self.limits.max_num_batched_tokens

    def _sequences(self) -> int:
        """Return the number of running sequences, including those to be forked."""
        return sum(r.num_sequences for r in self.running) if self._several else len(self.running)

    def _groups(self, requests: Iterable[Request]) -> list[list[Request]]:
        """Group the samples of each request."""
        if not self._several:
            return [[request] for request in requests]
        return [list(group) for _, group in groupby(requests, key=lambda r: r.parent or r)]

    def _decode(self, ctx: PlanContext) -> None:
        enough = 0 if self._reserves else len(self.running) * self.kv.block_size
        left: Sequence[Request] = self.running
        if not self._several:
            left = ctx.decode(left, len(left), free=0 if self.kv.reserves else enough)
        if not left:
            return
        plenty = self.kv.usage().free >= enough
        queue = deque(self._groups(left))
        self.running = self.running[: len(self.running) - len(left)]
        while queue:
            group = queue.popleft()
            due = [request for request in group if pending(request)]
            while due and not ((plenty or one_block_free(self.kv, len(due))) and self._extend(ctx, due)):
                victims = queue.pop() if queue else group
                self._preempt(ctx, victims)
                if victims is group:
                    break
            self.running += [request for request in group if request.state is State.RUNNING]

    def _extend(self, ctx: PlanContext, requests: list[Request]) -> bool:
        """Extend each request by one token; return False if one fails. Only the first can fail, since the caller has
        checked that one block is free for each."""
        return all(ctx.extend(request, 1) for request in requests)

    def _preempt(self, ctx: PlanContext, victims: list[Request]) -> None:
        first, *samples = victims
        if (samples or self.params.preemption_mode == "swap") and ctx.swap_out(first, samples):
            self.swapped = deque(sorted((*self.swapped, *victims), key=_arrival))
            return
        for victim in reversed(victims):
            ctx.preempt(victim)
            self.waiting.appendleft(victim)

    def _swap_in(self, ctx: PlanContext) -> None:
        budget = self.limits.max_num_batched_tokens - ctx.num_tokens
        for first, *samples in self._groups(self.swapped):
            together = 1 + len(samples)
            if budget < together or self._sequences() + together > self.limits.max_num_seqs:
                return
            if not all(pending(request) for request in (first, *samples)):
                return  # preempted while its last step was in a pipeline
            reserve = self.reserve if self.running else 0
            if not ctx.swap_in(first, 1, samples=samples, reserve=reserve):
                return
            self.running += [self.swapped.popleft() for _ in range(together)]
            budget -= together

    def on_fork(self, request: Request, samples: Sequence[Request]) -> None:
        queue: list[Request] | deque[Request] = self.running if request.state is State.RUNNING else self.waiting
        after = queue.index(request) + 1 if request in queue else 0
        for sample in reversed(samples):
            queue.insert(after, sample)

    def on_arrival(self, request: Request) -> None:
        self._several = self._several or request.num_sequences > 1
        super().on_arrival(request)

    def waiters(self) -> Iterator[Request]:
        return chain(self.swapped, self.waiting)

    def num_waiting(self) -> int:
        return len(self.swapped) + len(self.waiting)

    def drop_waiter(self, request: Request) -> None:
        (self.swapped if request in self.swapped else self.waiting).remove(request)


def _arrival(request: Request) -> tuple[int, int, int]:
    parent = request.parent
    return request.arrival_ns, parent.number if parent is not None else request.row, request.sample
