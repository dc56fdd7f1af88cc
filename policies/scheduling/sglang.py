"""The SGLang scheduler (0.5.23: srt/managers/scheduler.py, schedule_policy.py, schedule_batch.py).

Prefill first: whenever waiting requests fit, a batch of prompts runs without any decode. The number admitted depends on
an estimate of how much the running ones will still generate (new_token_ratio); if it is too low, requests are
retracted.

Left out ("no trace": only for features that a trace and its settings cannot request; "differs": plans may differ from
SGLang's):

| left out | why |
|---|---|
| grammar queue, LoRA limits and drainer | no trace: structured output, adapters |
| embedding and readout requests, images, beam search, streaming sessions | no trace: prompts of text, sampled answers |
| DLLM, HiSparse, PD multiplexing, KV shards, n-gram embedding | no trace: features not modeled |
| `get_alloc_reserve_per_decode` | no trace: drafts are refused with this scheduler |
| tiles and exact chunks (AMD), `truncation_align_size` | no trace: other hardware, deterministic kernels |
| `PrefillDelayer`, `MinFreeSlotsDelayer`, `DynamicChunkSizer`, `TEST_RETRACT` | no trace: no setting, off |
| `prefill_decode_interval_min_bs`, `disable_priority_preemption`, `routing-key` | no trace: no setting |
| `check_prefetch_progress`, staged loads | no trace: storage behind host memory is not modeled |
| `check_hicache_events`, timeouts, aborts | elsewhere: servesim/features/offload/hicache.py, servesim/engine/core.py |
| MLP sync of data-parallel ranks | elsewhere: servesim/features/data_parallel/part.py |
| bootstrap queue of prompts to hand off | elsewhere: servesim/features/handoff/first.py |
| host backup of retracted requests | differs under PD: they are recomputed |
| `_touch_waiting_prefixes` | differs for lru: a waiter's prefix counts as used when it is admitted |
| `max_new_tokens_for_memory` | differs for caps beyond memory: such requests are refused, not shortened |
| eviction by `_abort_on_queued_limit` | differs by priority: a full queue refuses the newcomer |
| `SWAPrefillBudget`, `is_hybrid_swa` | differs for sliding windows: one budget, and a full batch stays full |
| Mamba slots in `budget_state` | differs for models with states: they limit max_running_requests instead |
| a running batch for each microbatch | differs if pp > 1: one batch for all stages |
| `is_extend_in_batch` | differs if dp > 1: each rank counts prefill_decode_interval for itself |
| `budget_state` before the first waiter | differs if max_prefill_tokens < chunked_prefill_size: one more may enter |
| ratio 1 of running requests with ignore_eos | differs with ignore_eos: new_token_ratio applies to them too |
| `filter_batch` before prefill | differs: a full batch admits requests one decode after one has left it |
| `_reqs_finishing_inflight` | differs, planned ahead: requests decode one step beyond their cap, as under PD |
| `preempt_to_schedule` of requests in flight | differs by priority, planned ahead: they are not preempted |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from servesim.contracts import Defaults, KVAllocator, Limits, Plan, PlanContext, Request, State
from servesim.contracts.scheduler import schedulers
from servesim.errors import UserError

from ._common import refuse_if_hopeless
from ._prefill_adder import CLIP_MAX_NEW_TOKENS, Added, Grant, PrefillAdder, max_new
from ._sglang_arrivals import RemoteArrivals
from ._sglang_batch import RunningBatch
from ._sglang_order import CACHE_AWARE, order
from ._sglang_params import SglangParams

CHUNKS = ((20, 2048), (60, 4096), (160, 8192))
"""Tuples of (GiB of GPU memory, chunked_prefill_size for GPUs with less memory); 16384 for all larger GPUs."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(RunningBatch):
    """SGLang scheduler: prefill batches before decode batches, cached prefixes first if requested, retraction when
    memory runs out."""

    Params: ClassVar[type[Any]] = SglangParams
    supports = frozenset({"async", "remote_kv", "external"})
    samples = "prefix-first"
    paper = "Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs, NeurIPS 2024"

    def __init__(self, params: SglangParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.policy = params.schedule_policy
        if self.policy in CACHE_AWARE and not kv.shares:
            if self.policy == "shortest-prefill-first":
                raise UserError(
                    f"scheduler sglang: shortest-prefill-first needs a prefix cache, but kv {kv.name} has none"
                )
            self.policy = "fcfs"  # SGLang's policy when its cache is disabled
        chunk = params.chunked_prefill_size
        self.chunk_size = None if chunk is None or chunk < 0 else chunk
        if self.chunk_size is not None and self.chunk_size < kv.block_size:
            raise UserError(
                f"scheduler {self.name}: chunked_prefill_size={self.chunk_size} is smaller than a page of kv "
                f"{kv.name} ({kv.block_size} tokens), so no prompt longer than chunked_prefill_size could ever "
                "run"
            )
        self.last: list[Request] = []  # last prefill batch, until it joins `batch`
        self.chunk_end: dict[Request, int] = {}
        self._shuffles = 0
        self._next_step = 0  # id of the step after the last one planned
        self._since_read = 0  # decode steps since the last check
        self.arrivals = RemoteArrivals(self)

    @classmethod
    def complete(cls, params: SglangParams, defaults: Defaults) -> SglangParams:
        chunk = next((size for gib, size in CHUNKS if defaults.gpu_memory_gib < gib), 16384)
        return replace(
            params,
            chunked_prefill_size=chunk if params.chunked_prefill_size is None else params.chunked_prefill_size,
            max_running_requests=params.max_running_requests or max(defaults.max_num_seqs, 2048),
        )

    def plan(self, ctx: PlanContext) -> Plan:
        if self._rules.scheduler_recv_interval > 1:
            self._read(ctx.step_id - self._next_step)
        self._decays += ctx.step_id - self._next_step  # bulk-planned steps of the same decodes
        if not self.running and not self.waiting:
            self._ratio, self._decays = self._init_ratio, 0  # idle
        self._merge_last()
        if ctx.connector is not None and not ctx.connector.in_step:
            self.arrivals.reserve(ctx)
        if self._decodes_due and self.batch:
            self._decodes_due -= 1
        else:
            self._prefill(ctx)
        if not ctx.num_tokens and self._decode(ctx) and not ctx.num_tokens:
            self._prefill(ctx)  # SGLang's loop immediately runs again
        if self.arrivals.come and not self.last:
            self.arrivals.join(ctx)
        self._next_step = ctx.step_id + (ctx.num_tokens > 0)
        return ctx.plan

    def _read(self, skipped: int) -> None:
        """Check for newly arrived requests if it is time to do so: after a decode, only once per interval. `skipped` is
        the number of steps with the same decodes that were planned in bulk and saw no new requests."""
        interval = self._rules.scheduler_recv_interval
        self._since_read = (self._since_read + skipped) % interval + 1
        if self.last or not self.running or self._since_read >= interval:
            self._since_read = 0
            for request in self._unread:
                self.waiting.remove(request)  # moves behind requests retracted since
                self._queue(request)
            self._unread.clear()

    def readable(self) -> list[Request]:
        """Return the waiting requests that the scheduler has seen."""
        return [r for r in self.waiting if r not in self._unread] if self._unread else list(self.waiting)

    def _merge_last(self) -> None:
        done = [r for r in self.last if r is not self.chunked and r.state is State.RUNNING]
        if len(done) < len(self.last):
            self.full = False
        self.batch += done
        self.last = []

    # Prefill.

    def _prefill(self, ctx: PlanContext) -> None:
        p = self._rules
        if p.enable_priority_scheduling:
            self.full = False
        if (self.full or len(self.waiting) == len(self._unread)) and self.chunked is None:
            return
        slots = self.limits.max_num_seqs - len(self.batch)
        if slots <= 0 and self.chunked is None and not p.enable_priority_scheduling:
            self.full = bool(self.batch)
            return
        self._sort()
        decodes = len(self.batch) if p.enable_mixed_chunk else 0
        adder = PrefillAdder(
            self.kv, self.batch, ctx.tokens_left(self.batch, CLIP_MAX_NEW_TOKENS), self.new_token_ratio,
            p.max_prefill_tokens, self.chunk_size, decodes, p.ignore_eos and not self.kv.shares,
        )  # fmt: skip
        if self.chunked is not None and not self._continue(ctx, adder, self.chunked):
            return
        self._add_waiting(ctx, adder)
        if not ctx.plan.tokens:
            return
        self._prefilled += sum(ctx.plan.tokens.values())
        self._decodes_due = p.prefill_decode_interval
        self.last = list(ctx.plan.tokens)
        if decodes and self._make_room(ctx, retract=False):
            self._extend(ctx, self.batch)
            self.last += self.batch
            self.batch = []

    def _continue(self, ctx: PlanContext, adder: PrefillAdder, request: Request) -> bool:
        left = self.chunk_end[request] - request.num_computed_tokens
        tokens, more = adder.continue_chunk(request, left, self._shorter_ones(left, adder))
        if not ctx.extend(request, tokens):
            return False
        if not more:
            self.chunked = None
            del self.chunk_end[request]
        return True

    def _shorter_ones(self, left: int, adder: PrefillAdder) -> int | None:
        """Return a cap on the chunk in progress that leaves room for shorter prompts (shortest-prefill-first only)."""
        if self.policy != "shortest-prefill-first" or not adder.chunk_left or adder.chunk_left < 2 * adder.page:
            return None
        kept = 0
        for request in self.readable():
            work = max(request.num_tokens - self.kv.lookup(request).num_tokens, 1)
            charge = -(-work // adder.page) * adder.page
            if work >= left or kept + charge > adder.chunk_left - adder.page:
                break
            kept += charge
        return (adder.chunk_left - kept) // adder.page * adder.page if kept else None

    def _add_waiting(self, ctx: PlanContext, adder: PrefillAdder) -> None:
        for request in self.readable():
            if len(adder.added) >= self.limits.max_num_seqs - len(self.batch):
                self.full = True
            if self.full and not (self._rules.enable_priority_scheduling and self._preempt_for(ctx, request, adder)):
                return
            most = self._rules.prefill_max_requests
            if most is not None and len(adder.added) >= most:
                return
            hit = ctx.lookup(request)
            whole = self.chunked is not None and self.policy == "shortest-prefill-first"
            external = ctx.external(request, hit) if ctx.connector is not None else 0
            grant = adder.add(request, hit, self.kv.idle_tokens(hit), whole=whole, external=external)
            if isinstance(grant, Grant) and not ctx.admit(request, grant.tokens, hit, external=external):
                grant = Added.NO_TOKEN
            if not isinstance(grant, Grant):
                if grant is Added.NO_TOKEN:
                    if refuse_if_hopeless(self, ctx, request):
                        continue
                    self.full = bool(self.running)
                return
            self.waiting.remove(request)
            self.running.append(request)
            self._prefilled_before.pop(request, None)
            if grant.chunked:
                self.chunked, self.chunk_end[request] = request, request.num_tokens
            state = adder.state()
            if state is not Added.CONTINUE:
                self.full = self.full or state is Added.NO_TOKEN
                return

    def _sort(self) -> None:
        p = self._rules
        sign = 1 if p.schedule_low_priority_values_first else -1
        if self.policy == "fcfs" and not p.enable_priority_scheduling:
            return
        self._shuffles += self.policy == "random"
        self.waiting = deque(
            order(
                self.policy,
                self.waiting,
                self.kv.lookup,
                waited=lambda r: self._prefilled - self._prefilled_before[r],
                draw=self._shuffles,
                priority=(lambda r: r.priority * sign) if p.enable_priority_scheduling else None,
            )
        )

    def _preempt_for(self, ctx: PlanContext, waiter: Request, adder: PrefillAdder) -> bool:
        """Retract running requests of much lower priority if this makes room for a waiting one."""
        sign = 1 if self._rules.schedule_low_priority_values_first else -1
        victims: list[Request] = []
        short = waiter.num_tokens - self.kv.lookup(waiter).num_tokens + max_new(waiter) - adder.remaining
        live = [r for r in self.batch if r.state is State.RUNNING]
        for request in sorted(live, key=lambda r: (-sign * r.priority, -r.arrival_ns)):
            if -sign * (waiter.priority - request.priority) <= self._rules.priority_scheduling_preemption_threshold:
                break
            if request.num_output_placeholders or request in ctx.plan.tokens:
                continue
            victims.append(request)
            short -= max_new(request) * self.new_token_ratio
            if short <= 0:
                break
        if not victims or short > 0:
            return False
        for request in victims:
            adder.total_offset -= max_new(request) * self.new_token_ratio
            adder.available += self.kv.slots(request)
            self._retract(ctx, request)
        self.full = False
        return True

    # Queues.

    def on_arrival(self, request: Request) -> None:
        if request.num_computed_tokens:
            self.arrivals.come.append(request)
            return
        self._queue(request)
        if self._rules.scheduler_recv_interval > 1:
            self._unread[request] = None

    def drop_waiter(self, request: Request) -> None:
        self._unread.pop(request, None)
        if not self.arrivals.drop(request):
            super().drop_waiter(request)

    def waiters(self) -> Iterator[Request]:
        return chain(self.arrivals.come, self.waiting, self.arrivals.prealloc)

    def num_waiting(self) -> int:
        return len(self.arrivals.come) + len(self.waiting) + len(self.arrivals.prealloc)

    def on_finish(self, requests: Sequence[Request]) -> None:
        super().on_finish(requests)
        self._ended = True
        for request in requests:
            self.chunk_end.pop(request, None)
            self._prefilled_before.pop(request, None)
            if request is self.chunked:
                self.chunked = None


schedulers.register("sglang")(Sglang)
