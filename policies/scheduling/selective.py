"""Iteration-level scheduling with selective batching (Orca, OSDI 2022).

Requests may leave and join after every iteration. First come, first served: a request is admitted when slots for its
prompt and its longest possible output are free, and holds them until it ends; its whole prompt runs in one iteration,
alongside other requests' decodes. Linear layers process one flat batch; attention is computed request by request.

TensorRT-LLM's chunked context splits prompts: decodes come first, then prompts in order of arrival, of the one that
does not fit in what is left of `max_num_tokens` whole blocks (setCtxRequestsChunkSize<kFIRST_COME_FIRST_SERVED> in
cpp/tensorrt_llm/batch_manager/microBatchScheduler.cpp; the unit is tokens_per_block, as
tensorrt_llm/_torch/pyexecutor/py_executor_creator.py sets it). Its batch waiting holds prompts back while decodes run
(PyExecutor._waiting_requests); here, prompts count as they would without prefix hits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, ClassVar

from servesim.contracts import Defaults, Hit, KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.params import check_least
from servesim.contracts.scheduler import schedulers
from servesim.contracts.searched import Span
from servesim.errors import UserError

from ._common import FOREVER, pending, refuse_if_hopeless


@dataclass(frozen=True)
class SelectiveParams:
    """Orca's settings under the paper's names."""

    searched: ClassVar[Mapping[str, Any]] = {
        "max_bs": Span(16, 2048),
        "max_num_tokens": Span(1024, 32768),
        "enable_chunked_context": (False, True),
    }
    max_bs: int | None = None
    """Maximum number of requests per iteration; None: vLLM's max_num_seqs for the GPU."""
    n_slots: int | None = None
    """Number of slots, each for the keys and values of one token; None: as many as the allocator has."""
    max_num_tokens: int | None = None
    """Maximum number of tokens per iteration (TensorRT-LLM); None: no limit. A longer prompt runs alone, unless prompts
    are split."""
    enable_chunked_context: bool = False
    """Whether to split prompts that do not fit in max_num_tokens (TensorRT-LLM's chunked context)."""
    batch_wait_timeout_iters: int = 0
    """Maximum number of steps with decodes for which prompts are held back, so that more of them run together
    (TensorRT-LLM). 0, or a ratio of 0, holds none back."""
    batch_wait_max_tokens_ratio: float = 0.0
    """Share of max_num_tokens, in prompts and decodes of a step, from which prompts are no longer held back."""
    fused_attention: bool = False
    """Whether one attention kernel serves all requests, as in engines after Orca."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_bs", "n_slots", "max_num_tokens")
        if self.enable_chunked_context and self.max_num_tokens is None:
            raise ValueError("enable_chunked_context has no effect without max_num_tokens")
        check_least(self, 0, "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio")
        if self.batch_wait_timeout_iters and self.batch_wait_max_tokens_ratio and self.max_num_tokens is None:
            raise ValueError("batch_wait_max_tokens_ratio has no effect without max_num_tokens")

    @property
    def max_num_seqs(self) -> int | None:
        return self.max_bs


@schedulers.register("selective")
class Selective(Scheduler):
    """Orca's Algorithm 1. If the allocator has its own reservation rule, that rule is used in place of the slots."""

    Params = SelectiveParams
    paper = "Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI 2022"
    params: SelectiveParams
    supports = frozenset({"remote_kv"})
    attention = "per_request"
    layout = "mixed"

    def __init__(self, params: SelectiveParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.n_rsrv = 0
        self.waited = 0
        """Steps for which prompts have been held back."""
        self.n_slots = params.n_slots or FOREVER
        if params.enable_chunked_context and (params.max_num_tokens or 0) < kv.block_size:
            raise UserError(
                "scheduler selective: enable_chunked_context splits prompts only at block boundaries (every "
                f"{kv.block_size} tokens), but max_num_tokens is {params.max_num_tokens}"
            )

    @classmethod
    def complete(cls, params: SelectiveParams, defaults: Defaults) -> SelectiveParams:
        return replace(params, max_bs=params.max_bs or defaults.max_num_seqs)

    def plan(self, ctx: PlanContext) -> Plan:
        ctx.plan.attention = "fused" if self.params.fused_attention else self.attention
        ctx.plan.layout = self.layout
        under_way = []
        for request in ctx.decode(self.running, len(self.running)):
            if (left := pending(request)) > 1:
                under_way.append(request)
            elif left:
                ctx.extend(request, 1)
        if self.params.batch_wait_timeout_iters and ctx.num_tokens and self._waits(ctx.num_tokens, under_way):
            return ctx.plan
        budget = (self.params.max_num_tokens or FOREVER) - ctx.num_tokens
        for request in under_way:
            if new := self._piece(pending(request), budget):
                ctx.extend(request, new)
                budget -= new
        owed = sum(self._short(r) for r in ctx.fetched if r.state < State.FINISHED)
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            slots = request.prompt_len + request.max_tokens
            hit = ctx.lookup(request)
            if ctx.connector is not None and (taken := self._fetch(ctx, request, hit, owed)) is not None:
                if not taken:
                    break
                self.waiting.popleft()
                owed += self._short(request)
                continue
            left = request.num_tokens - hit.num_tokens
            new = self._piece(left, budget) or (0 if self.params.enable_chunked_context or ctx.plan.admitted else left)
            if not new:
                break
            unused = 0 if self.kv.reserves else slots - request.num_tokens + left - new
            waited = self._short(request) if request in ctx.fetched else 0
            if self.n_rsrv + slots > self.n_slots or not ctx.admit(request, new, hit, lookahead=unused):
                if refuse_if_hopeless(self, ctx, request):
                    continue
                break
            self.n_rsrv += slots
            owed -= waited
            budget -= new
            self.running.append(self.waiting.popleft())
        return ctx.plan

    def _piece(self, left: int, budget: int) -> int:
        """Return how many of the last `left` tokens of a prompt fit in the budget: all, else whole blocks if prompts
        are split, else none."""
        if left <= budget:
            return left
        return budget // self.kv.block_size * self.kv.block_size if self.params.enable_chunked_context else 0

    def _waits(self, decodes: int, under_way: Sequence[Request]) -> bool:
        """Decide whether the prompts that could run now are held back, beside so many decodes."""
        total = self.params.max_num_tokens or FOREVER
        tokens, budget = 0, total - decodes
        room = min(self.kv.usage().free, self.n_slots - self.n_rsrv)
        for request in under_way:
            if new := self._piece(pending(request), budget):
                tokens += request.num_tokens
                budget -= new
        for request in islice(self.waiting, max(self.limits.max_num_seqs - len(self.running), 0)):
            room -= request.prompt_len + request.max_tokens
            new = self._piece(request.num_tokens, budget)
            if not new and not tokens and not self.params.enable_chunked_context:
                new = request.num_tokens  # a longer prompt runs alone
            if not new or room < 0:
                break
            tokens += request.num_tokens
            budget -= new
        few = decodes + tokens < self.params.batch_wait_max_tokens_ratio * total
        waits = tokens > 0 and few and self.waited < self.params.batch_wait_timeout_iters
        if tokens:
            self.waited = self.waited + 1 if waits else 0
        return waits

    def _short(self, request: Request) -> int:
        """Return the slots that a request needs at its maximum length beyond those it has, in whole blocks."""
        size = self.kv.block_size
        return -(-(request.prompt_len + request.max_tokens - self.kv.slots(request)) // size) * size

    def _fetch(self, ctx: PlanContext, request: Request, hit: Hit, owed: int) -> bool | None:
        """If remote KV exists for the head of the queue, make it wait for that KV, once memory suffices for it and for
        the `owed` slots that all other requests that wait for KV need, each at its maximum length."""
        size = self.kv.block_size
        own = max(request.max_tokens - (-request.prompt_len % size), 0)
        return ctx.fetch(request, hit, owed=max(owed, 0) + -(-own // size) * size)

    def on_arrival(self, request: Request) -> None:
        if request.num_computed_tokens:  # its KV has arrived: goes before requests without memory
            earlier = sum(1 for _ in takewhile(lambda r: r.num_computed_tokens > 0, self.waiting))
            self.waiting.insert(earlier, request)
        else:
            super().on_arrival(request)

    def on_finish(self, requests: Sequence[Request]) -> None:
        self.n_rsrv -= sum(r.prompt_len + r.max_tokens for r in requests if r.state is State.RUNNING)
        super().on_finish(requests)
