"""Contract of schedulers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from mypy_extensions import mypyc_attr

from servesim.contracts.kv import KVAllocator
from servesim.contracts.params import SchedulerParams
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import RUNNING, Request, SampleForm, State
from servesim.errors import UserError
from servesim.plugins.registry import Registry

PREDICTED = "predicted_output_len"


@dataclass(frozen=True)
class Defaults:
    """Values from which a scheduler's unset parameters are derived."""

    max_num_seqs: int
    """Default of vLLM V1 on this GPU."""
    max_num_batched_tokens: int
    max_model_len: int
    """Maximum request length that the model or the user allows."""
    gpu_memory_gib: float


@dataclass(frozen=True)
class Limits:
    """Resolved limits that the engine passes to a scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    async_scheduling: bool = False
    """Whether steps are planned before the outputs of the step in flight are known."""


class Timer(Protocol):
    """Time of a replica in simulated ns, for schedulers that wait on purpose. `wake_at` asks for a plan at a time; if a
    step is in flight then, its end asks for one anyway."""

    def now(self) -> int: ...

    def wake_at(self, ns: int) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(ABC):
    """Owner of a replica's queues, which decides what the next step computes.

    A minimal scheduler overrides `plan` alone: the base class keeps `waiting` (arrival order) and `running` (admission
    order), and drops finished requests. Whatever a scheduler raises ends the run with a PolicyError that names its
    class and line.
    """

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Reference that describes the idea."""
    Params: ClassVar[type[Any]] = SchedulerParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """"output_len" marks an oracle that may call `ctx.output_len(request)`; PREDICTED marks one that uses
    `request.predicted_output_len`."""
    supports: ClassVar[frozenset[str]] = frozenset()
    """"async": plans correctly with a step in flight (see Request.num_output_placeholders). "deferred": skips waiting
    requests that are `ctx.deferred`, as host memory requires. "external": admits requests with the result of
    `ctx.external`. "remote_kv": calls `ctx.fetch` before it admits a request, and takes requests back when their KV has
    arrived (`on_arrival`). "timer": is given a `timer`, by which it can be asked for a plan at a later time."""

    samples: ClassVar[SampleForm] = "children"
    """How a request with several samples (n > 1) is served: see servesim.workload.samples. "fork" requires an allocator
    that supports it, and `on_fork`."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Features it refuses at start-up, with reasons; "samples": requests with several samples."""

    keeps_budget: ClassVar[bool] = True
    """Whether a step computes at most `max_num_batched_tokens` of a request."""

    lookahead: int = 0
    """KV slots reserved per request for drafts."""
    timer: Timer | None = None
    """Set by the replica before the first request if "timer" is in `supports`."""

    params: Any
    limits: Limits
    kv: KVAllocator
    waiting: deque[Request] | Any
    """Requests that wait, in order of arrival; another container if the policy's own methods use it."""
    running: list[Request]

    def __init__(self, params: Any, limits: Limits, kv: KVAllocator) -> None:
        self.params = params
        self.limits = limits
        self.kv = kv
        self.waiting = deque()
        self.running = []

    @classmethod
    def complete(cls, params: Any, defaults: Defaults) -> Any:
        """Return `params` with all values filled in. The engine takes the limits of a replica from the result's
        `max_num_seqs` and `max_num_batched_tokens`, whether or not they are fields. Default: the values of vLLM V1,
        which never runs more sequences than its token limit."""
        names = {field.name for field in fields(params)}
        if "max_num_batched_tokens" in names and params.max_num_batched_tokens is None:
            params = replace(params, max_num_batched_tokens=defaults.max_num_batched_tokens)
        if "max_num_seqs" in names and params.max_num_seqs is None:
            tokens = getattr(params, "max_num_batched_tokens", defaults.max_num_batched_tokens)
            params = replace(params, max_num_seqs=min(defaults.max_num_seqs, tokens))
        return params

    @abstractmethod
    def plan(self, ctx: PlanContext) -> Plan:
        """Decide one step through the verbs of `ctx` and return `ctx.plan`. An empty plan means that nothing can be
        done now; the scheduler is called again at the next event. Only those verbs may change requests. The engine
        raises PolicyError if the plan schedules a request that is not running, or more tokens than are known or than
        the request has memory for."""

    def on_arrival(self, request: Request) -> None:
        """Handle a request that arrives or, with "remote_kv", whose KV has arrived; the latter holds memory and has
        computed tokens. Default: append it to `waiting`."""
        self.waiting.append(request)

    def on_finish(self, requests: Sequence[Request]) -> Sequence[Request] | None:
        """Handle requests (in batch order) that have received their last token or were cancelled. Default: drop them
        and free their memory, except for a request with an `owner` (unless it was cancelled) and one that is
        `being_read`. A request that was preempted while its last token was in flight is still waiting.

        Return the requests whose answers are sent now, including earlier ones that were held back (static batching
        returns a batch together); None stands for exactly the given requests.
        """
        for request in requests:
            if request.state is RUNNING:
                del self.running[position(self.running, request)]
                if (request.owner is None or request.reason) and not request.being_read:
                    self.kv.free(request)  # otherwise kept until it is read
            else:
                self.drop_waiter(request)
        return None

    def on_fork(self, request: Request, samples: Sequence[Request]) -> None:
        """Handle the additional samples of a request whose prompt has been computed, each with its first token. They
        are running if the request is, or preempted if it is. Called only if `samples` is "fork". Default: raise
        NotImplementedError."""
        raise NotImplementedError(f"{self.name}: does not define where forked samples go")

    def drop_waiter(self, request: Request) -> None:
        """Take a request out of the waiting queue. Raise ValueError if it is not there."""
        self.waiting.remove(request)

    def commit(self, step_id: int, sampled: Sequence[Request]) -> None:
        """Handle the commit of a step. These requests, which have been running ever since the step was planned,
        received their tokens; those that end with these tokens are still running. Default: do nothing."""
        return None

    def waiters(self) -> Iterator[Request]:
        """Return the requests that hold no slot, in the order in which they would be served. Changes nothing; may be
        called at any time."""
        return iter(self.waiting)

    def num_waiting(self) -> int:
        """Return how many requests wait. Changes nothing; may be called at any time."""
        return len(self.waiting)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken. Changes nothing; called after steps with `check`."""
        rows = [r.row for r in self.running] + [r.row for r in self.waiters()]
        assert len(rows) == len(set(rows)), "a request is queued twice"
        assert len(rows) == len(self.running) + self.num_waiting(), "num_waiting miscounts"
        assert all(r.state is State.RUNNING for r in self.running), "not running, but in the running list"
        waiting = (State.WAITING, State.PREEMPTED, State.SWAPPED)
        assert all(r.state in waiting for r in self.waiters()), "waits, but has run"


def position(requests: list[Request], request: Request) -> int:
    """Return the index of a request in a list. (`list.index` would compare each one for equality, too, not only for
    identity.) Raise ValueError if it is not there."""
    for i, each in enumerate(requests):
        if each is request:
            return i
    raise ValueError(f"{request} is not there")


def check_samples(scheduler: Scheduler, kv: KVAllocator) -> None:
    """Raise UserError unless scheduler and allocator can serve requests with several samples."""
    if "samples" in scheduler.cannot:
        reason = scheduler.cannot["samples"]
        raise UserError(f"scheduler {scheduler.name} cannot serve requests with several samples (n > 1): {reason}")
    if scheduler.samples == "fork" and not kv.can_fork():
        hybrid = " with engine.disable_hybrid_kv_cache_manager" if kv.grouped else ""
        raise UserError(
            f"scheduler {scheduler.name} forks samples of a request (n > 1) that share its memory, but kv {kv.name} "
            f"does not support this. Use a kv that does, such as paged{hybrid}."
        )


schedulers: Registry[Scheduler] = Registry("scheduler", Scheduler, "servesim.policies.scheduling")
