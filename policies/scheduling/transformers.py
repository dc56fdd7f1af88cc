"""Continuous batching of Hugging Face transformers (5.17: generation/continuous_batching/scheduler.py).

Each step takes requests in order, decoding ones first, until the token budget is spent; prompts are cut to fit what is
left of it. A request that lacks blocks sits the step out, and the newest of those that sat out are evicted and
recomputed from the start. Batching is synchronous and has no CPU swap pool, as in the engine on a CPU or with attention
that needs a mask. Prefixes are shared as the allocator shares them (`paged`: not at all).

Left out ("no trace": only for what a trace and its settings cannot ask for; "differs": plans may differ from the
engine's):

| left out | why |
|---|---|
| streamed outputs, logits processors, statistics | no decision: for whoever reads the outputs |
| cancelled requests | elsewhere: servesim/engine/core.py |
| `num_children`, `_requests_to_fork` | no trace: requests with several samples are refused with this scheduler |
| `is_cpu_offloaded`, its turns with fresh requests | differs with a CPU swap pool: evicted requests are recomputed |
| asynchronous batching | differs on a GPU: a step is planned only when the one before is done |
| `decode_fast_path` | differs with block tables: a batch of decodes alone may read no more KV than any other |
| `read_cache_limit` | differs for models with sliding windows alone: reads outside the window count, too |
| blocks by layer group in `starved_requests` | differs for models with several: the demand is counted for one group |
| a prefix match of a request that stays out of the batch | differs with prefix sharing: it keeps waiting, unmatched |
| the error when nothing can be evicted | differs: requests that cannot be held are refused, and the others run on |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from servesim.contracts.kv import MISS, KVAllocator
from servesim.contracts.params import SchedulerParams
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.contracts.scheduler import Limits, Scheduler, schedulers

_SPARE = 2
"""Extra tokens counted when allocating new blocks (`_allocate_blocks_if_needed`)."""
_MARGINS = {"fifo": 0.15, "prefill_first": 0.0}


@dataclass(frozen=True)
class TransformersParams(SchedulerParams):
    """The engine's `max_requests_per_batch`, `max_batch_tokens`, `scheduler_type`, and `safety_margin`, with its
    defaults (it lowers `max_batch_tokens` if memory is short)."""

    max_num_seqs: int | None = 1024
    """Maximum number of running requests (`max_requests_per_batch`)."""
    max_num_batched_tokens: int | None = 8192
    """Maximum number of tokens per step (`max_batch_tokens`)."""
    scheduler_type: str = "fifo"
    """Order of requests. "fifo": decodes, then prompts in progress, then waiting ones; "prefill_first": prompts in
    progress first."""
    safety_margin: float | None = None
    """Share of the blocks that must be free for a prompt to join others; None: 0.15 (fifo) or 0 (prefill_first)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheduler_type not in _MARGINS:
            raise ValueError(f'scheduler_type must be "fifo" or "prefill_first", not "{self.scheduler_type}"')
        if self.safety_margin is not None and not 0.0 <= self.safety_margin <= 1.0:
            raise ValueError(f"safety_margin is {self.safety_margin} but must be from 0 to 1")


@schedulers.register("transformers")
class Transformers(Scheduler):
    """Scheduler that serves decodes, prompts in progress, then waiting requests, within one token budget."""

    Params = TransformersParams
    cannot: ClassVar[Mapping[str, str]] = {"samples": "forking of return sequences is not modeled"}
    params: TransformersParams

    def __init__(self, params: TransformersParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        given = params.safety_margin
        margin = _MARGINS[params.scheduler_type] if given is None else given
        self._margin = margin * (kv.capacity_tokens // kv.block_size)
        self._prefilling: set[Request] = set()
        self._starved: list[tuple[Request, int]] = []  # running but lacking blocks for their next tokens
        self._closed = False  # after an eviction, until a request has finished

    def plan(self, ctx: PlanContext) -> Plan:
        failed = self._schedule(ctx)
        while failed and not ctx.num_tokens:
            if not self._evict(ctx):
                self._give_up(ctx)
                return ctx.plan
            failed = self._schedule(ctx)
        if self._starved:
            self._evict(ctx)
        return ctx.plan

    def _schedule(self, ctx: PlanContext) -> bool:
        """Fill one batch; return whether any request lacked blocks."""
        self._starved, failed = [], False
        budget, most = self.limits.max_num_batched_tokens, self.limits.max_num_seqs
        reads = self.kv.capacity_tokens  # KV tokens one batch can index
        active = self._decode(ctx)
        if served := ctx.num_tokens:
            budget -= served
            reads -= self.kv.held_tokens - sum(r.num_computed_tokens for r in active)
        admitted: list[Request] = []
        for request in chain(active, () if self._closed else self.waiting):
            if budget == 0 or reads <= 0 or served >= most:
                break
            free = self._free_blocks()
            waits = request.state is not State.RUNNING
            decodes = not waits and request not in self._prefilling
            if free < self._margin and served and not decodes:
                break
            hit = ctx.lookup(request) if waits else MISS
            past = hit.num_tokens if waits else request.num_computed_tokens
            remaining = request.num_tokens - past
            if reads < past or remaining < 1:  # its last token is still being computed (pipeline stages)
                continue
            new = min(remaining, budget)
            taken = ctx.admit(request, new, hit, lookahead=_SPARE) if waits else self._grow(ctx, request, new)
            if not taken:
                failed = True
                if waits and free == 0:
                    break
                continue
            if waits:
                admitted.append(request)
            if new < remaining:
                self._prefilling.add(request)
            else:
                self._prefilling.discard(request)
            budget -= new
            reads -= past
            served += 1
        for request in admitted:
            self.waiting.remove(request)  # from near the head
        self.running += admitted
        return failed

    def _decode(self, ctx: PlanContext) -> Sequence[Request]:
        """Serve decodes in bulk if they come first and blocks are taken one at a time; return the other running
        requests."""
        decoding = [r for r in self.running if r not in self._prefilling]
        under_way = [r for r in self.running if r in self._prefilling]
        if self.params.scheduler_type != "fifo":
            return under_way + decoding
        if self.kv.shares or self.kv.block_size <= _SPARE:
            return decoding + under_way
        limits = self.limits
        left = ctx.decode(decoding, min(limits.max_num_batched_tokens, limits.max_num_seqs))
        return [*left, *under_way]

    def _grow(self, ctx: PlanContext, request: Request, new: int) -> bool:
        """Extend a request, allocating more blocks, with a margin, only if its current ones are too few."""
        short = request.num_computed_tokens + new - self.kv.slots(request)
        if ctx.extend(request, new, lookahead=_SPARE if short > 0 else 0):
            return True
        self._starved.append((request, (short + 1) // self.kv.block_size + 1))
        return False

    def _evict(self, ctx: PlanContext) -> bool:
        """Evict the newest starved requests until the others fit, but never the last running one."""
        demand = sum(blocks for _, blocks in self._starved)
        free, victims = self._free_blocks(), 0
        evicted = []
        while demand > free and self._starved and len(self.running) - victims > 1:
            request, blocks = self._starved.pop()
            victims += 1
            evicted.append(request)
            demand -= blocks
            free += self.kv.slots(request) // self.kv.block_size
        for request in reversed(evicted):
            self.running.remove(request)
            self._prefilling.discard(request)
            ctx.preempt(request)
            self.waiting.append(request)
        self._closed = self._closed or bool(evicted)
        return bool(evicted)

    def _give_up(self, ctx: PlanContext) -> None:
        """Refuse the requests that cannot be held, since nothing can run and nothing can be evicted. The engine stops
        with an error at this point."""
        for request, _ in self._starved:
            self.running.remove(request)
            self._prefilling.discard(request)
            ctx.preempt(request)
            ctx.reject(request, "needs more KV blocks than exist")
        if not self._starved and not self.running:
            ctx.reject(self.waiting.popleft(), "needs more KV blocks than exist")
        self._starved = []

    def _free_blocks(self) -> int:
        return self.kv.usage().free // self.kv.block_size

    def on_finish(self, requests: Sequence[Request]) -> None:
        super().on_finish(requests)
        self._prefilling.difference_update(requests)
        self._closed = False
