"""N replicas behind a router on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.kv import KVAllocator
from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import WAIT, Decision, Pair, Reject, ReplicaState, Router, Wait
from servesim.engine.clock import ABORT, ARRIVE, FOLLOW, Clock
from servesim.engine.core import EngineCore
from servesim.engine.data_parallel import Rank, join
from servesim.engine.failures import Failing, Failures
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.memory import fast_memory
from servesim.engine.fast.rank import FastRank
from servesim.engine.fast.replica import FastReplica
from servesim.engine.fleet import Fleet
from servesim.engine.handoff import Handoff
from servesim.engine.pool import Pool
from servesim.engine.replica import Replica
from servesim.engine.reports import Reporting
from servesim.engine.scaling import Scaled, Scaling
from servesim.engine.telling import Telling
from servesim.engine.waiting import Waiting
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
    rank: type[Replica]
    """Of replicas that are data-parallel ranks."""


MODES = {
    "reference": Mode(EngineCore, Replica, lambda cls: cls, Rank),
    "fast": Mode(FastCore, FastReplica, fast_memory, FastRank),
}


class Cluster:
    """Serves a workload until its last request has left.

    `mode` is "fast" or "reference" (see MODES; the cores and their memory are made of its classes): the latter plans,
    prices and commits every step by itself, and fast mode equals it to the nanosecond. `only`: of all requests those
    routed to these replicas are served, and the others are another process's (servesim.run.processes). `report_every`
    and `report_lag`, in ns: the age of what the router sees (servesim.engine.reports); 0: it sees what is. `failures`:
    what breaks (servesim.engine.failures). `handoff`: how requests whose prompt and answer are computed by different
    replicas get from one to the other. `scaled`: pools whose replicas come and go (servesim.engine.scaling).
    """

    def __init__(
        self,
        workload: Workload,
        pools: Sequence[Pool],
        router: Router,
        *,
        mode: str = "fast",
        recorder: Recorder | None = None,
        only: frozenset[int] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        report_every: int = 0,
        report_lag: int = 0,
        failures: Failures | None = None,
        handoff: Handoff | None = None,
        scaled: Sequence[Scaled] = (),
    ) -> None:
        self._parts = MODES[mode]
        self.clock = Clock()
        self.recorder = recorder or Recorder()
        self._only = only
        self.recorder.join = mode == "fast"
        self.workload = workload
        self.router = router
        self.fleet = Fleet(pools, self._make)
        self.replicas = self.fleet.replicas
        self.groups = join(self.clock, self.replicas, pools)
        for replica in self.replicas:
            if "future" in replica.core.kv.needs:
                self._foretell(replica.core.kv)
        self._answers_matter = not workload.open_loop
        self.num_arrived = self.num_left = 0
        self._on_progress = on_progress
        self._armed: Event | None = None
        self._armed_ns = -1
        self.arrive_order = ARRIVE
        self.handoff = handoff
        self.reporting: Reporting | None = None
        if report_every:
            self.reporting = Reporting(self, report_every, report_lag)
        self.waiting = Waiting(self.clock, self._decide, self._act)
        forks = bool(self.replicas) and self.replicas[0].core.scheduler.samples == "fork"
        self.telling = Telling(router, self.clock, self.waiting.recall, forks=forks)
        for replica in self.replicas:
            self.telling.listen(replica)
        self.failing: Failing | None = None
        if failures is not None:
            self.failing = Failing(self, failures)
        if handoff is not None:
            handoff.join(self)
        self.scaling: Scaling | None = None
        self.scale(scaled)

    def scale(self, scaled: Sequence[Scaled]) -> None:
        """Have the replicas of these pools come and go; to be called before the first event."""
        self.scaling = Scaling(self, list(scaled)) if scaled else None

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Let the router know a replica's state."""
        self.fleet.set_state(index, state)
        if self.handoff is not None:
            self.handoff.retry()
        self.telling.state(index, state)

    def _make(self, index: int, core: EngineCore, pool: Pool) -> Replica:
        of = self._parts.replica if pool.data_parallel is None else self._parts.rank
        replica = of(self.clock, index, core, pool.cost, self.recorder, pool.depth)
        replica.on_leave, replica.horizon = self._leave, self._horizon
        return replica

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

    @property
    def num_waiting(self) -> int:
        """Requests that wait in the router."""
        return self.waiting.num_waiting + (self.failing.num_pausing if self.failing is not None else 0)

    @property
    def busy(self) -> bool:
        """Whether any request has not left yet or may still come."""
        forked = sum(replica.core.num_forked for replica in self.replicas)
        return self.num_left < self.num_arrived + forked or self.workload.remaining() > 0

    def run(self) -> None:
        """Serve everything. PolicyError where a policy breaks its contract or starves a request."""
        with self._blaming():
            self._run()

    def _run(self) -> None:
        self.start()
        self.clock.run()
        self.recorder.close()
        if held := self.num_waiting:
            raise PolicyError(f"router {self.router.name} at {self.now_ns} ns: {held} requests wait in it without end")
        arrived = self.num_arrived + sum(r.core.num_forked for r in self.replicas)
        stuck = sum(r.core.num_unfinished for r in self.replicas)
        if lost := arrived - self.num_left - stuck:
            raise PolicyError(f"{self._names()} at {self.now_ns} ns: {lost} requests are in no queue any more")
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
        if self.reporting is not None:
            self.reporting.start()
        if self.failing is not None:
            self.failing.start()
        if self.scaling is not None:
            self.scaling.start()
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
        self._armed = self.clock.at(due, self.arrive_order if due > self.clock.ns else FOLLOW, self._arrive)
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
            for deadline in request.deadlines:
                self.clock.at(max(deadline.ns, now), ABORT, partial(self._give_up, request, deadline))
            self.num_arrived += 1
            self.place(request, output_len)
        self._arm()

    # What becomes of a request.

    def place(self, request: Request, output_len: int) -> None:
        """Do with a request what the router says."""
        decision = self._decide(request)
        if isinstance(decision, Wait):
            model = request.model if self.fleet.models else ""
            self.waiting.hold(self.router.queue_key(request), request, output_len, model, decision)
        else:
            self._act(request, output_len, decision)

    def _decide(self, request: Request) -> Decision:
        parent = request.parent
        if parent is not None and parent.replica >= 0:
            return parent.replica  # what belongs together is served together
        if not self.fleet.offer(request):
            return WAIT
        return self.router.route(request, self.fleet.views)

    def _act(self, request: Request, output_len: int, decision: Decision) -> None:
        if self.handoff is not None and self.handoff.takes(decision):
            self.handoff.begin(request, output_len, decision)
        elif isinstance(decision, int):
            self._send(request, output_len, decision)
        elif isinstance(decision, Reject):
            if self._only is None or 0 in self._only:
                self.end(request, State.REJECTED, f"refused by the router ({decision.status})")
        else:
            assert isinstance(decision, Pair)
            raise UserError(f"router {self.router.name} chooses a pair of replicas, but none here is for prompts alone")

    def _send(self, request: Request, output_len: int, index: int) -> None:
        if not 0 <= index < len(self.replicas):
            raise PolicyError(f"{self.router.name} at {self.now_ns} ns: routes {request} to replica {index}")
        if request.parent is not None:
            request.parent.replica = index
        if self._only is not None and index not in self._only:
            self.num_arrived -= 1
            return
        request.replica = index
        if self.reporting is not None:
            self.reporting.sent(request, index)
        if self.telling.sent:
            self.router.on_sent(request, index)
        if self.scaling is not None:
            self.scaling.sent(request, index)
        if self.failing is not None and not self.failing.reaches(request, output_len, index):
            return
        self.replicas[index].arrive(request, output_len)

    def end(self, request: Request, state: State, reason: str) -> None:
        """Let a request leave that is with no replica any more."""
        request.state, request.reason, request.finished_ns = state, reason, self.clock.ns
        self.recorder.leave(request, request.replica)
        if self.waiting.drop(request):
            self.telling.dropped(request)
        self._left(request)

    def _give_up(self, request: Request, deadline: Deadline, event: Event) -> None:
        """Cancel a request whose client's patience ends at this instant."""
        if self.handoff is not None and self.handoff.give_up(request, deadline):
            return
        if request.replica >= 0:
            self.replicas[request.replica].give_up(request, deadline)
        elif request.state < State.FINISHED:
            self.end(request, State.ABORTED, deadline.reason)

    def _leave(self, request: Request) -> None:
        if request.owner is not None:
            assert self.handoff is not None
            self.handoff.left(request)
            return
        telling = self.telling if self.handoff is None else self.handoff.telling_of(request)
        self._left(request)
        telling.finish(request)

    def _left(self, request: Request) -> None:
        self.num_left += 1
        if self.handoff is not None:
            self.handoff.forget(request)
        if self.failing is not None:
            self.failing.forget(request)
        if self.scaling is not None:
            self.scaling.left(request)
        self.workload.on_finish(request, self.clock.ns)
        if self._answers_matter:
            self._arm()
        if self._on_progress is not None and self.num_left % PROGRESS_EVERY == 0:
            self._on_progress(self.now_ns, self.num_left)

    def _horizon(self) -> int | None:
        """Nanoseconds until each replica may have had an arrival; None: unknown."""
        due = self._armed_ns if self._armed is not None else None
        return (due - self.clock.ns) * len(self.replicas) if due is not None else None
