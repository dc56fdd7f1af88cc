"""SGLang's running batch (0.5.23: srt/managers/schedule_batch.py, scheduler_components/new_token_ratio_tracker.py).

It decodes until memory runs out; then requests are retracted, and fewer are admitted for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mypy_extensions import mypyc_attr

from servesim.contracts import KVAllocator, Limits, PlanContext, Request, Scheduler, State
from servesim.contracts.plan import NO_END

from ._sglang_params import SglangParams

DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20


@mypyc_attr(allow_interpreted_subclasses=True)
class RunningBatch(Scheduler):
    """Requests that decode together, and the state that prefill shares with them."""

    def __init__(self, params: SglangParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self._rules = params  # SGLang's params, even in a subclass
        self._page, self._groups = kv.block_size, len(kv.memory.windows) if kv.grouped else 1
        self.batch: list[Request] = []  # decoding; may include requests that ended since it last ran
        self._ended = False  # whether it may
        self.chunked: Request | None = None  # request mid-prefill
        self.full = False  # no request enters until one leaves
        self._init_ratio = min(0.7 * params.schedule_conservativeness, 1.0)
        self._ratio, self._decays = self._init_ratio, 0
        self._prefilled = 0  # tokens in all prefill batches so far
        self._prefilled_before: dict[Request, int] = {}  # at waiter's arrival
        self._decodes_due = 0
        self._unread: dict[Request, None] = {}  # in `waiting`, not yet seen by the scheduler

    @property
    def new_token_ratio(self) -> float:
        """Share of the tokens that running requests may still generate for which memory is reserved."""
        if not self._decays:
            return self._ratio
        least = 0.14 * self._init_ratio
        return max(self._ratio - self._decays * (self._init_ratio - least) / DECAY_STEPS, least)

    def _decode(self, ctx: PlanContext) -> bool:
        """Plan the decodes; return whether any request has left the batch."""
        before = len(self.batch)
        self._drop_ended()
        left: Sequence[Request] = self.batch
        if left:
            held = self.full and len(left) == before and not self._rules.enable_priority_scheduling
            alone = self.chunked is None and (held if self.waiting else not self.full) and not self._decodes_due
            free = len(left) * self._page * self._groups
            steps = NO_END if alone and not self._unread else 1
            left = ctx.decode(left, len(left), free=free, steps=steps, overrun=True)
            if len(left) < len(self.batch):  # each decode has a page
                self._decays += 1
            else:
                self._decays += self._make_room(ctx, retract=True)
                left = self.batch
        if len(self.batch) < before:
            self.full = False
        self._extend(ctx, left)
        return len(self.batch) < before

    def _drop_ended(self) -> None:
        if self._ended:
            self.batch = [r for r in self.batch if r.state is State.RUNNING]
            self._ended = False

    def _extend(self, ctx: PlanContext, requests: Sequence[Request]) -> None:
        for request in requests:
            if request not in ctx.plan.tokens and self._wants(request):
                ctx.extend(request, 1)

    def _wants(self, request: Request) -> bool:
        """Return whether the next token to compute is known or, with asynchronous scheduling, will be known once the
        step in flight is done."""
        coming = request.num_output_placeholders if self.limits.async_scheduling else 0
        computed = request.num_computed_tokens
        return request.num_tokens + coming > computed and computed < request.prompt_len + request.max_tokens

    def _make_room(self, ctx: PlanContext, retract: bool) -> bool:
        """Return whether memory suffices for one more token per decode; if not and `retract` is set, retract requests
        until it suffices for the rest."""
        self._drop_ended()
        if self._needed(self.batch) <= self.kv.usage().free:
            return True
        if not retract:
            return False
        keep = self.retraction_order(self.batch)
        first = True
        while len(keep) > 1 and (first or self._needed(keep) > self.kv.usage().free):
            first = False
            self._retract(ctx, keep.pop())
            self.kv.evict(len(keep) * RETRACT_DECODE_STEPS)
        self.batch = keep
        if len(keep) == 1 and self._needed(keep) > self.kv.usage().free and not ctx.extend(keep[0], 1):
            self._give_up(ctx, keep[0])  # layer groups with windows may have just freed pages
        self._ratio = self.ratio_after_retraction(self.batch)
        self._decays = 0
        return False

    def _needed(self, requests: Iterable[Request]) -> int:
        """Return the number of tokens in the pages needed for one more token per request, at one page per layer
        group."""
        slots = self.kv.slots
        return self._page * self._groups * sum(self._wants(r) and slots(r) <= r.num_computed_tokens for r in requests)

    def retraction_order(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests in reverse order of retraction: the first to be retracted comes last."""

        def worth(request: Request) -> tuple[int, int, int]:
            sign = 1 if self._rules.schedule_low_priority_values_first else -1
            urgent = -sign * request.priority if self._rules.retraction_policy == "priority" else 0
            return urgent, request.num_output_tokens, -request.prompt_len

        return sorted(requests, key=worth, reverse=True)

    @staticmethod
    def ratio_after_retraction(kept: Sequence[Request]) -> float:
        """Return the new_token_ratio computed from the progress of the kept requests."""
        decoded = sum(r.num_output_tokens for r in kept)
        most = sum(r.max_tokens for r in kept)
        return min(1.0, (decoded + RETRACT_DECODE_STEPS * len(kept)) / (most + 1))

    def _retract(self, ctx: PlanContext, request: Request) -> None:
        ctx.preempt(request)
        self.running.remove(request)
        if request in self.batch:
            self.batch.remove(request)
        self._queue(request)

    def _give_up(self, ctx: PlanContext, request: Request) -> None:
        self._retract(ctx, request)
        self.waiting.remove(request)
        self._prefilled_before.pop(request)
        ctx.reject(request, "out of KV memory although no other request is decoding")

    def _queue(self, request: Request) -> None:
        self.waiting.append(request)
        self._prefilled_before[request] = self._prefilled
