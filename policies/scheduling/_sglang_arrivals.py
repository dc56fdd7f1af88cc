"""SGLang's decode side when prompts are computed remotely (0.5.23: srt/disaggregation/decode.py).

Requests are given memory for their prompts first come, first served (the prealloc queue), as long as enough memory is
left for the running requests: `RESERVED_DECODE_TOKENS` for each request on this side or, if that is more, the amount
that the longest of them would need if it ran alone. When a request's KV has arrived, it joins the batch as it is,
without a separate step ("prebuilt"). While a retracted request waits, no request is given memory. Here, retracted
requests are recomputed; SGLang copies their KV to host memory and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from servesim.contracts import PlanContext, Request, State

from ._prefill_adder import CLIP_MAX_NEW_TOKENS

if TYPE_CHECKING:
    from .sglang import Sglang

RESERVED_DECODE_TOKENS = 512
"""SGLANG_NUM_RESERVED_DECODE_TOKENS, --num-reserved-decode-tokens."""


class RemoteArrivals:
    """Queues of requests whose prompts are computed remotely."""

    def __init__(self, scheduler: Sglang) -> None:
        self._scheduler = scheduler
        self.prealloc: list[Request] = []
        """Requests waiting for memory."""
        self.come: list[Request] = []
        """Requests whose KV has arrived but which are not in the batch yet."""

    def reserve(self, ctx: PlanContext) -> None:
        """Allocate memory for waiting requests."""
        own = self._scheduler
        assert ctx.connector is not None
        for request in own.readable():
            if request.state is State.WAITING and ctx.connector.available(request, 0):
                own.waiting.remove(request)
                self.prealloc.append(request)
        if own.readable():
            return  # retracted ones come first
        while self.prealloc:
            request = self.prealloc[0]
            taken = ctx.fetch(request, ctx.lookup(request), owed=self._kept(ctx, request))
            if taken is False:
                return
            del self.prealloc[0]
            if taken is None:
                own.on_arrival(request)

    def _kept(self, ctx: PlanContext, request: Request) -> int:
        """Return the number of tokens that must stay free in addition to a prompt."""
        running = [r for r in self._scheduler.running if r.state is State.RUNNING]
        others = sum(r.state < State.FINISHED for r in ctx.fetched)
        if not running and not others:
            return 0
        retractable = sum(r.num_tokens for r in running)
        worst = max(min(r.max_tokens, CLIP_MAX_NEW_TOKENS) + r.prompt_len - retractable for r in [*running, request])
        size = self._scheduler.kv.block_size
        kept = max(RESERVED_DECODE_TOKENS * (len(running) + others), worst) + RESERVED_DECODE_TOKENS
        return -(-kept // size) * size

    def join(self, ctx: PlanContext) -> None:
        """Add requests whose KV has arrived to the batch."""
        own = self._scheduler
        for request in list(self.come):
            if len(own.running) >= own.limits.max_num_seqs or not ctx.admit(request, 1):
                return
            self.come.remove(request)
            own.running.append(request)
            own.batch.append(request)

    def drop(self, request: Request) -> bool:
        """Remove a request from the queues; return False if it is in none."""
        for queue in (self.come, self.prealloc):
            if request in queue:
                queue.remove(request)
                return True
        return False
