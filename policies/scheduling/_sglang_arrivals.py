"""SGLang's decode side where prompts are computed elsewhere (0.5.23: srt/disaggregation/decode.py).

First come, first served, a request is given memory for its prompt (the prealloc queue) while enough is left for what
runs: `RESERVED_DECODE_TOKENS` for each request here, or what the longest of them would need alone. When its KV has come
it joins the batch as it is, without a step of its own ("prebuilt"). While one that was retracted waits, no request is
given memory. It is computed again here; SGLang copies its KV to host memory and back.
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
    """The queues of requests whose prompt is computed elsewhere."""

    def __init__(self, scheduler: Sglang) -> None:
        self._scheduler = scheduler
        self.prealloc: list[Request] = []
        """Those that wait for memory."""
        self.come: list[Request] = []
        """Those whose KV has come and that are not in the batch yet."""

    def reserve(self, ctx: PlanContext) -> None:
        """Give memory to those that wait for it."""
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
        """Tokens that stay free beside a prompt."""
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
        """Let those whose KV has come join the batch."""
        own = self._scheduler
        for request in list(self.come):
            if len(own.running) >= own.limits.max_num_seqs or not ctx.admit(request, 1):
                return
            self.come.remove(request)
            own.running.append(request)
            own.batch.append(request)

    def drop(self, request: Request) -> bool:
        """Take a request out of the queues; False: it is in none."""
        for queue in (self.come, self.prealloc):
            if request in queue:
                queue.remove(request)
                return True
        return False
