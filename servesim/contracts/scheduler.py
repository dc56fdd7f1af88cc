"""Contract of schedulers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator
from servesim.contracts.params import SchedulerParams
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, SampleForm, State
from servesim.errors import UserError
from servesim.plugins.registry import Registry

PREDICTED = "predicted_output_len"


@dataclass(frozen=True)
class Defaults:
    """The values a scheduler's unset parameters are derived from."""

    max_num_seqs: int
    """vLLM V1's default on this GPU."""
    max_num_batched_tokens: int
    max_model_len: int
    """Longest request the model, or the user, allows."""
    gpu_memory_gib: float


@dataclass(frozen=True)
class Limits:
    """The limits the engine tells a scheduler about, resolved."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    async_scheduling: bool = False
    """Steps are planned before the outputs of the step in flight are known."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(ABC):
    """Owns the queues of a replica and decides what the next step computes.

    A minimal scheduler overrides `plan` alone: the base class keeps `waiting` (arrival order) and `running`
    (admission order), and drops finished requests.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Where the idea is described."""
    Params: ClassVar[type[Any]] = SchedulerParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """"output_len" marks an oracle that may ask `ctx.output_len(request)`; PREDICTED one that goes by
    `request.predicted_output_len`."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """"async": plans correctly with a step in flight (see Request.num_output_placeholders). "deferred": passes over
    waiting requests that are `ctx.deferred`, as host memory needs it. "external": admits requests with what
    `ctx.external` tells. "remote_kv": asks `ctx.fetch` before it admits a request, and takes those back whose KV has
    come (`on_arrival`)."""

    samples: ClassVar[SampleForm] = "children"
    """The way a request of several samples (n > 1) is served: see servesim.workload.samples. "fork" needs an
    allocator that can, and `on_fork`."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Features it refuses at start-up, and why; "samples": requests of several samples."""

    keeps_budget: ClassVar[bool] = True
    """Whether a step computes at most `max_num_batched_tokens` of a request."""

    lookahead: int = 0
    """KV slots it keeps ahead per request for drafts."""

    def __init__(self, params: Any, limits: Limits, kv: KVAllocator) -> None:
        self.params = params
        self.limits = limits
        self.kv = kv
        self.waiting: deque[Request] | Any = deque()  # of another kind where a policy's own methods know what to do
        self.running: list[Request] = []

    @classmethod
    def complete(cls, params: Any, defaults: Defaults) -> Any:
        """Return `params` with nothing left open. The engine takes the limits of a replica from its `max_num_seqs` and
        `max_num_batched_tokens`, fields or not. Default: vLLM V1's, which never runs more sequences than it has tokens
        for."""
        names = {field.name for field in fields(params)}
        if "max_num_batched_tokens" in names and params.max_num_batched_tokens is None:
            params = replace(params, max_num_batched_tokens=defaults.max_num_batched_tokens)
        if "max_num_seqs" in names and params.max_num_seqs is None:
            tokens = getattr(params, "max_num_batched_tokens", defaults.max_num_batched_tokens)
            params = replace(params, max_num_seqs=min(defaults.max_num_seqs, tokens))
        return params

    @abstractmethod
    def plan(self, ctx: PlanContext) -> Plan:
        """Decide one step through the verbs of `ctx` and return `ctx.plan`. An empty plan means: nothing
        can be done now; it is asked for again at the next event."""

    def on_arrival(self, request: Request) -> None:
        """Called when a request arrives or, with "remote_kv", when its KV has come: that one holds memory
        and has computed tokens. Default: append it to `waiting`."""
        self.waiting.append(request)

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request] | None:
        """Called when these requests (in batch order) have their last token or were cancelled. Default: drop them, free
        their memory (but that of one with an `owner`, unless it was cancelled, and of one `being_read`). One that was
        preempted while its last token was in flight still waits.

        Return the requests whose answers go out now, among them earlier ones that were held back (static
        batching returns a batch together); None: these."""
        for request in requests:
            if request.state is State.RUNNING:
                del self.running[position(self.running, request)]
                if (request.owner is None or request.reason) and not request.being_read:
                    self.kv.free(request)  # else it is kept until it has been read
            else:
                self.drop_waiter(request)
        return None

    def on_fork(self, request: Request, samples: Sequence[Request]) -> None:
        """Called with the further samples of a request whose prompt has been computed, each with its first token. They
        are running if the request is, or preempted if it is. Only where `samples` is "fork"."""
        raise NotImplementedError(f"{self.name}: does not say where forked samples go")

    def drop_waiter(self, request: Request) -> None:
        """Take a request out of the waiting queue."""
        self.waiting.remove(request)

    def commit(self, step_id: int, sampled: Sequence[Request]) -> None:
        """Called after a step commits; these requests, running ever since it was planned, received their tokens; those
        that end with them are still running. Default: nothing."""
        return None

    def waiters(self) -> Iterator[Request]:
        """Return the requests that hold no slot, in the order in which they would be served."""
        return iter(self.waiting)

    def num_waiting(self) -> int:
        """Return how many requests wait."""
        return len(self.waiting)

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        rows = [r.row for r in self.running] + [r.row for r in self.waiters()]
        assert len(rows) == len(set(rows)), "a request is queued twice"
        assert len(rows) == len(self.running) + self.num_waiting(), "num_waiting miscounts"
        assert all(r.state is State.RUNNING for r in self.running), "not running, but in the running list"
        waiting = (State.WAITING, State.PREEMPTED, State.SWAPPED)
        assert all(r.state in waiting for r in self.waiters()), "waits, but has run"


def position(requests: list[Request], request: Request) -> int:
    """Return the index of a request in a list. (`list.index` would compare each one for equality, too, not only for
    identity.)"""
    for i, each in enumerate(requests):
        if each is request:
            return i
    raise ValueError(f"{request} is not there")


def check_samples(scheduler: Scheduler, kv: KVAllocator) -> None:
    """Raise UserError unless scheduler and allocator can serve requests of several samples."""
    if "samples" in scheduler.cannot:
        reason = scheduler.cannot["samples"]
        raise UserError(f"scheduler {scheduler.name} cannot serve requests of several samples (n > 1): {reason}")
    if scheduler.samples == "fork" and not kv.can_fork():
        raise UserError(
            f"scheduler {scheduler.name} forks samples of a request (n > 1) that share its memory, which kv {kv.name} "
            "does not support: use one that does, such as paged"
            + (" with engine.disable_hybrid_kv_cache_manager" if kv.grouped else "")
        )


schedulers: Registry[Scheduler] = Registry("scheduler", Scheduler, "servesim.policies.scheduling")
