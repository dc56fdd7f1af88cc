"""Static batching (FasterTransformer, HF generate): a batch is composed once and runs until its last row is done.

Prompts are padded to the longest, and finished rows stay as padding. Every row holds memory for the longest prompt and
the longest output until the end, and all answers return together. By default a batch is composed of what waits. With
`max_queue_delay_microseconds`, it waits until it is full, but no longer than that: the dynamic batcher of Triton, which
serves FasterTransformer (docs: user guide, batchers). A server never knows that no more requests will come, so the last
batch of a trace, if it is not full, begins when the delay is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

    max_queue_delay_microseconds: int = 0
    """Maximum time in us for which a batch that is not full waits for more requests, counted from when its first
    request reached the queue; 0: a batch never waits."""
    preferred_batch_size: int | tuple[int, ...] = ()
    """Numbers of rows for which a batch does not wait: the largest of them that the waiting requests fill begins at
    once, unless the delay is over. One number, or in YAML a list of them; empty: max_batch_size."""

    def __post_init__(self) -> None:
        check_least(self, 1, "max_batch_size")
        check_least(self, 0, "max_queue_delay_microseconds")
        for size in self.preferred_sizes:
            if size < 1 or size > (self.max_batch_size or 0):
                most = "which is not set" if self.max_batch_size is None else f"{self.max_batch_size}"
                raise ValueError(f"preferred_batch_size {size} must be from 1 to max_batch_size, {most}")

    @property
    def preferred_sizes(self) -> tuple[int, ...]:
        sizes = self.preferred_batch_size
        return (sizes,) if isinstance(sizes, int) else sizes

    @property
    def max_num_seqs(self) -> int | None:
        return self.max_batch_size


@schedulers.register("static")
class Static(Scheduler):
    """Request-level batching: the requests waiting when a batch has ended form the next one, as far as memory
    allows, and as far as waiting for more is worth it."""

    Params = StaticParams
    supports: ClassVar[frozenset[str]] = frozenset({"timer"})
    keeps_budget = False
    cannot: ClassVar[Mapping[str, str]] = {"samples": "a row of its padded batch is one request"}
    paper = "FasterTransformer (NVIDIA); the baseline of PagedAttention (SOSP 2023) and Orca (OSDI 2022)"

    def __init__(self, params: StaticParams, limits: Limits, kv: KVAllocator) -> None:
        super().__init__(params, limits, kv)
        self.padding: list[Request] = []  # finished rows of the running batch
        self.row_len = 0  # tokens per row once the prompts are computed
        self.first_step = 0  # that step's id
        self._delay_ns = params.max_queue_delay_microseconds * 1000
        self._preferred = sorted(params.preferred_sizes)
        self._since: dict[Request, int] = {}  # with a delay: when each waiting request reached the queue

    @classmethod
    def complete(cls, params: StaticParams, defaults: Defaults) -> StaticParams:
        return replace(params, max_batch_size=params.max_batch_size or defaults.max_num_seqs)

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
        if rows and not (rows := self._rows_to_begin(ctx.now, rows)):
            return
        while rows and not self._begin(ctx, rows):
            rows -= 1
        if not rows and self.waiting and refuse_if_hopeless(self, ctx, self.waiting[0]):
            self._compose(ctx)

    def _rows_to_begin(self, now: int, rows: int) -> int:
        """Return the size of the batch that begins now if `rows` requests could, or 0 if they wait for more."""
        due = self._since.get(self.waiting[0], now) + self._delay_ns
        if self._delay_ns and now >= due:
            return rows
        for size in reversed(self._preferred):
            if size <= rows:
                return size
        if not self._delay_ns or rows == self.limits.max_num_seqs or rows < len(self.waiting):
            return rows
        if self.timer is not None:
            self.timer.wake_at(due)
        return 0

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
            self._since.pop(request, None)
        return bool(self.running)

    def on_arrival(self, request: Request) -> None:
        super().on_arrival(request)
        if self._delay_ns and self.timer is not None:
            self._since[request] = self.timer.now()

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request]:
        gone = []
        for request in requests:
            if request.state is State.RUNNING:
                self.running.remove(request)
                self.padding.append(request)
            else:
                self.drop_waiter(request)
                self._since.pop(request, None)
                gone.append(request)
        if self.running:
            return gone
        for request in self.padding:
            self.kv.free(request)
        gone += self.padding
        self.padding = []
        return gone
