"""Stall-free chunked prefills (Sarathi-Serve, OSDI 2024: sarathi/core/scheduler/sarathi_scheduler.py).

Every iteration first takes all decodes, then fills the rest of a budget of `chunk_size` tokens with prefill chunks, so
that no decode ever waits longer than one chunk of a prefill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from servesim.contracts import Defaults, KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.params import check_least, check_share
from servesim.contracts.scheduler import schedulers

from ._common import (
    one_block_free,
    pending,
    refuse_if_hopeless,
    watermark,
)

ALIGN = 32
ARRIVAL = attrgetter("arrival_ns", "row")
"""Order of arrival."""


@dataclass(frozen=True)
class SarathiParams:
    """sarathi-serve's settings under its names."""

    max_num_seqs: int | None = None
    """Maximum number of running requests; None: vLLM's max_num_seqs for the GPU."""
    chunk_size: int = 512
    """Token budget per iteration, which prefills fill up (the paper: 512 for strict latency limits, 2048 for
    others)."""
    watermark: float = 0.01
    """Fraction of the blocks that admissions leave free."""
    reserve_output: bool = False
    """Whether admissions reserve memory for the longest possible output, so that no request is preempted
    (ExLlamaV2)."""
    enable_dynamic_chunking_schedule: bool = False
    """Whether to shrink the budget as a prompt progresses, from high_chunk_size to low_chunk_size in equal stages."""
    low_chunk_size: int = 32
    """Budget of the last stage, in tokens; a multiple of 32."""
    high_chunk_size: int = 1024
    """Budget of the first stage, in tokens; a multiple of 32."""
    chunk_schedule_max_tokens: int = 4096
    """Number of prompt tokens over which the stages are spread; the last stage applies beyond them."""
    chunk_schedule_stages: int = 16
    """Number of stages."""

    def __post_init__(self) -> None:
        stages = ("chunk_schedule_max_tokens", "chunk_schedule_stages")
        check_least(self, 1, "max_num_seqs", "chunk_size", "low_chunk_size", "high_chunk_size", *stages)
        if self.enable_dynamic_chunking_schedule and (self.low_chunk_size % ALIGN or self.high_chunk_size % ALIGN):
            raise ValueError(f"low_chunk_size and high_chunk_size must be multiples of {ALIGN}")
        check_share("watermark", self.watermark)

    @property
    def max_num_batched_tokens(self) -> int:
        return self.high_chunk_size if self.enable_dynamic_chunking_schedule else self.chunk_size


@schedulers.register("sarathi")
class Sarathi(Scheduler):
    """Scheduler that serves all decodes, then running prefills, then new requests whose whole prompt fits in memory;
    first come, first served."""

    Params = SarathiParams
    paper = "Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI 2024"
    params: SarathiParams

    def __init__(self, params: SarathiParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.reserve = watermark(kv, params.watermark)
        self._reserves = params.reserve_output and not kv.reserves
        self.prefill_end: dict[Request, int] = {}  # for unfinished prompts
        self._entered = False  # whether the running list may be out of arrival order

    @classmethod
    def complete(cls, params: SarathiParams, defaults: Defaults) -> SarathiParams:
        return replace(params, max_num_seqs=params.max_num_seqs or defaults.max_num_seqs)

    def plan(self, ctx: PlanContext) -> Plan:
        prefills = self._plan_decodes(ctx)
        used = ctx.num_tokens
        for request in prefills:
            used += self._next_chunk(ctx, request, used)
        self._plan_waiting(ctx, used)
        return ctx.plan

    def _plan_decodes(self, ctx: PlanContext) -> list[Request]:
        """Schedule one token for each decode, in arrival order; return the prompts in progress."""
        for request, end in list(self.prefill_end.items()):
            if request.num_computed_tokens >= end:
                del self.prefill_end[request]
        if self._entered:
            self.running.sort(key=ARRIVAL)
            self._entered = False
        under_way = self.prefill_end
        decodes = [r for r in self.running if r not in under_way] if under_way else self.running
        enough = 0 if self._reserves else len(self.running) * self.kv.block_size
        left = ctx.decode(decodes, len(decodes), free=0 if self.kv.reserves else enough)
        if left:
            self._plan_each(ctx, decodes[: len(decodes) - len(left)], enough)
        return sorted(self.prefill_end, key=ARRIVAL)

    def _plan_each(self, ctx: PlanContext, decodes: list[Request], enough: int) -> None:
        """Schedule one token for each decode other than the already served `decodes`; if memory is short, preempt the
        latest arrivals."""
        served = set(decodes)
        queue = deque(r for r in self.running if r not in served)
        plenty = self.kv.usage().free >= enough
        while queue:
            request = queue.popleft()
            if request in self.prefill_end or not pending(request):
                continue
            while not ((plenty or one_block_free(self.kv)) and ctx.extend(request, 1)):
                victim = queue.pop() if queue else request
                ctx.preempt(victim)
                self.prefill_end.pop(victim, None)
                self.waiting.appendleft(victim)
                if victim is request:
                    break
        self.running = [request for request in self.running if request.state is State.RUNNING]

    def _next_chunk(self, ctx: PlanContext, request: Request, used: int) -> int:
        left = self.prefill_end[request] - request.num_computed_tokens
        new = min(left, self._budget(request.num_computed_tokens) - used)
        return new if new > 0 and ctx.extend(request, new) else 0

    def _plan_waiting(self, ctx: PlanContext, used: int) -> None:
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            hit = ctx.lookup(request)
            left = request.num_tokens - hit.num_tokens
            new = min(left, self._budget(hit.num_tokens) - used)
            if new <= 0:
                return
            output = request.prompt_len + request.max_tokens - request.num_tokens if self._reserves else 0
            if not ctx.admit(request, new, hit, reserve=self.reserve, lookahead=left - new + output):
                if refuse_if_hopeless(self, ctx, request):
                    continue
                return
            self.running.append(self.waiting.popleft())
            self.prefill_end[request] = request.num_tokens
            self._entered = True
            used += new

    def _budget(self, processed: int) -> int:
        """Return the token budget of an iteration for a request with `processed` prompt tokens done."""
        p = self.params
        if not p.enable_dynamic_chunking_schedule:
            return p.chunk_size
        stages = p.chunk_schedule_stages
        stage = min(processed // -(-p.chunk_schedule_max_tokens // stages), stages - 1)
        step = (p.high_chunk_size - p.low_chunk_size) / max(stages - 1, 1)
        size = int(p.high_chunk_size - step * stage) if stages > 1 else p.low_chunk_size
        return round(size / ALIGN) * ALIGN

    def on_finish(self, requests: Sequence[Request]) -> None:
        super().on_finish(requests)
        for request in requests:
            self.prefill_end.pop(request, None)
