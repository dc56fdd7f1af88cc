"""Static batching (FasterTransformer, HF generate): a batch is composed once and runs until its last row is done.

Prompts are padded to the longest, and finished rows stay as padding. Every row holds memory for the longest prompt and
the longest output until the end, and all answers return together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from servesim.contracts import MISS, Defaults, KVAllocator, Limits, Plan, PlanContext, Request, Scheduler, State
from servesim.contracts.params import check_least
from servesim.contracts.scheduler import schedulers

from ._common import pending, refuse_if_hopeless


@dataclass(frozen=True)
class StaticParams:
    """FasterTransformer's batch limit; the driver around it takes requests in arrival order."""

    max_batch_size: int | None = None
    """Maximum number of rows in a batch; None: as many as fit in memory, up to vLLM's max_num_seqs for the GPU."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_batch_size")

    @property
    def max_num_seqs(self) -> int | None:
        return self.max_batch_size


@schedulers.register("static")
class Static(Scheduler):
    """Request-level batching: the requests waiting when a batch has ended form the next one, as far as memory
    allows."""

    Params = StaticParams
    keeps_budget = False
    cannot: ClassVar[Mapping[str, str]] = {"samples": "a row of its padded batch is one request"}
    paper = "FasterTransformer (NVIDIA); the baseline of PagedAttention (SOSP 2023) and Orca (OSDI 2022)"

    def __init__(self, params: StaticParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.padding: list[Request] = []  # finished rows of the running batch
        self.row_len = 0  # tokens per row once the prompts are computed
        self.first_step = 0  # that step's id

    @classmethod
    def complete(cls, params: StaticParams, defaults: Defaults) -> StaticParams:
        return StaticParams(params.max_batch_size or defaults.max_num_seqs)

    def plan(self, ctx: PlanContext) -> Plan:
        ctx.plan.layout = "padded"
        if not self.running:
            self._compose(ctx)
        else:
            for request in ctx.decode(self.running, len(self.running)):
                if pending(request):  # else its token is in flight
                    ctx.extend(request, 1)
        ctx.plan.padded_rows, ctx.plan.padded_len, ctx.plan.padded_at = len(self.padding), self.row_len, self.first_step
        return ctx.plan

    def _compose(self, ctx: PlanContext) -> None:
        """Begin a batch with as many of the first waiting requests as fit in memory, each with a row as long as the
        longest prompt plus the longest output. With groups of layers, less memory may be usable than the free tokens
        suggest; the batch is then smaller."""
        self.first_step = ctx.step_id
        rows = self._rows_that_fit()
        while rows and not self._begin(ctx, rows):
            rows -= 1
        if not rows and self.waiting and refuse_if_hopeless(self, ctx, self.waiting[0]):
            self._compose(ctx)

    def _rows_that_fit(self) -> int:
        free, size = self.kv.usage().free, self.kv.block_size
        rows = longest_prompt = longest_output = 0
        for request in self.waiting:
            longest_prompt = max(longest_prompt, request.prompt_len)
            longest_output = max(longest_output, request.max_tokens)
            row = -(-min(longest_prompt + longest_output, self.limits.max_model_len) // size) * size
            if rows == self.limits.max_num_seqs or (rows and (rows + 1) * row > free):
                break
            rows += 1
        return rows

    def _begin(self, ctx: PlanContext, rows: int) -> bool:
        """Admit the first `rows` requests, or fewer if memory runs out; return False if not even the first fits."""
        batch = list(islice(self.waiting, rows))
        self.row_len = max(request.prompt_len for request in batch)
        longest = self.row_len + max(request.max_tokens for request in batch)
        for request in batch:
            if not ctx.admit(request, request.prompt_len, MISS, lookahead=longest - request.prompt_len):
                break
            self.running.append(self.waiting.popleft())
        return bool(self.running)

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request]:
        gone = []
        for request in requests:
            if request.state is State.RUNNING:
                self.running.remove(request)
                self.padding.append(request)
            else:
                self.drop_waiter(request)
                gone.append(request)
        if self.running:
            return gone
        for request in self.padding:
            self.kv.free(request)
        gone += self.padding
        self.padding = []
        return gone
