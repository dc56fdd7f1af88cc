"""N replicas behind a router on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.cost import CostModel
from servesim.contracts.kv import KVAllocator
from servesim.contracts.request import Request
from servesim.contracts.router import Router
from servesim.engine.clock import ABORT, ARRIVE, Clock
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.memory import fast_memory
from servesim.engine.fast.replica import FastReplica
from servesim.engine.replica import Replica
from servesim.errors import PolicyError, UserError
from servesim.plugins.user_policies import blaming
from servesim.records.recorder import Recorder
from servesim.workload.workload import Workload

PROGRESS_EVERY = 64  # requests


class Mode(NamedTuple):
    """The classes a mode is made of."""

    core: type[EngineCore]
    replica: type[Replica]
    memory: Callable[[type[KVAllocator]], type[KVAllocator]]
    """Returns the class that serves as an allocator's."""


MODES = {"reference": Mode(EngineCore, Replica, lambda cls: cls), "fast": Mode(FastCore, FastReplica, fast_memory)}


class Cluster:
    """Serves a workload until its last request has left.

    `mode` is "fast" or "reference" (see MODES; the cores and their memory are made of its classes): the latter plans,
    prices and commits every step by itself, and fast mode equals it to the nanosecond. `only`: of all requests those
    routed to these replicas are served, and the others are another process's (servesim.run.processes).
    """

    def __init__(
        self,
        workload: Workload,
        cores: Sequence[EngineCore],
        router: Router,
        cost: CostModel,
        *,
        depth: int,
        mode: str = "fast",
        recorder: Recorder | None = None,
        only: frozenset[int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        parts = MODES[mode]
        self.clock = Clock()
        self.recorder = recorder or Recorder()
        self._only = only
        self.recorder.join = mode == "fast"
        self.workload = workload
        self.router = router
        self.replicas = [parts.replica(self.clock, i, core, cost, self.recorder, depth) for i, core in enumerate(cores)]
        for replica in self.replicas:
            replica.on_leave = self._leave
            replica.horizon = self._horizon
            if "future" in replica.core.kv.needs:
                self._foretell(replica.core.kv)
        self._answers_matter = not workload.open_loop
        self.num_sent = self.num_left = 0
        self._on_progress = on_progress
        self._armed: Event | None = None
        self._armed_ns = -1

    def _foretell(self, kv: KVAllocator) -> None:
        """Tell an oracle what will be asked of it."""
        future = self.workload.future()
        if future is None:
            raise UserError(f"kv {kv.name} is told the future, but here the order of requests depends on answers")
        if len(self.replicas) > 1:
            raise UserError(f"kv {kv.name} is told the future, but which replica serves what is not known before")
        kv.foresee(future)

    @property
    def now_ns(self) -> int:
        """Simulated time."""
        return self.clock.ns

    def run(self) -> None:
        """Serve everything. PolicyError where a policy breaks its contract or starves a request."""
        with self._blaming():
            self._run()

    def _run(self) -> None:
        self.start()
        self.clock.run()
        self.recorder.close()
        sent = self.num_sent + sum(r.core.num_forked for r in self.replicas)
        lost = sent - self.num_left - sum(r.core.num_unfinished for r in self.replicas)
        if lost:
            raise PolicyError(f"{self._names()} at {self.now_ns} ns: {lost} requests are in no queue any more")
        stuck = sum(r.core.num_unfinished for r in self.replicas)
        if stuck or self.workload.remaining():
            raise PolicyError(f"{self._names()} at {self.now_ns} ns: plans nothing although {stuck} requests wait")

    def _blaming(self) -> AbstractContextManager[None]:
        cores = [replica.core for replica in self.replicas]
        policies = [self.router, *(p for c in cores for p in (c.scheduler, c.kv, c.speculator, c.acceptance))]
        return blaming([type(policy) for policy in policies], lambda: f" at {self.now_ns} ns")

    def _names(self) -> str:
        return ", ".join(sorted({r.core.scheduler.name for r in self.replicas}))

    def start(self) -> None:
        """Wait for the first arrival; what `run` does before it lets the clock run."""
        self._arm()

    def step(self) -> bool:
        """Let one event happen; False when there is none left."""
        if self.clock.peek() == float("inf"):
            self.recorder.close()
            return False
        with self._blaming():
            self.clock.step()
        return True

    def _arm(self) -> None:
        """Wake at the next arrival."""
        due = self.workload.next_ns()
        if due is None or (self._armed is not None and self._armed_ns <= due):
            return
        self._armed = self.clock.at(due, ARRIVE, self._arrive)
        self._armed_ns = due

    def _arrive(self, event: Event) -> None:
        if event is not self._armed:
            return  # an earlier arrival was called for meanwhile
        self._armed = None
        now = self.clock.ns
        while self.workload.next_ns() == now:
            popped = self.workload.pop()
            if popped is None:
                continue
            request, output_len = popped
            parent = request.parent
            if parent is not None and parent.replica >= 0:
                index = parent.replica  # what belongs together is served together
            else:
                index = self.router.route(request, self.replicas)
                if parent is not None:
                    parent.replica = index
            if not 0 <= index < len(self.replicas):
                raise PolicyError(f"{self.router.name} at {now} ns: routes {request} to replica {index}")
            if self._only is not None and index not in self._only:
                continue
            self.num_sent += 1
            for deadline in request.deadlines:
                give_up = partial(self.replicas[index].give_up, request, deadline)
                self.clock.at(max(deadline.ns, now), ABORT, give_up)
            self.replicas[index].arrive(request, output_len)
        self._arm()

    def _leave(self, request: Request) -> None:
        self.num_left += 1
        self.workload.on_finish(request, self.clock.ns)
        if self._answers_matter:
            self._arm()
        if self._on_progress is not None and self.num_left % PROGRESS_EVERY == 0:
            self._on_progress(self.now_ns, self.num_left)

    def _horizon(self) -> int | None:
        """Nanoseconds until each replica may have had an arrival; None: unknown."""
        due = self._armed_ns if self._armed is not None else None
        return (due - self.clock.ns) * len(self.replicas) if due is not None else None
