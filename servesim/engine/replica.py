"""Replica in simulated time that plans steps as far ahead as its depth allows, prices them and commits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr
from simpy.events import Event

from servesim.contracts.connector import Connector
from servesim.contracts.cost import CostModel
from servesim.contracts.kv_events import KVEvent
from servesim.contracts.profile import Profile
from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import ReplicaState, Role
from servesim.engine import remote_kv
from servesim.engine.clock import COMPLETE, LOADED, PLAN, Clock
from servesim.engine.core import EngineCore
from servesim.engine.timer import CoreTimer
from servesim.errors import PolicyError
from servesim.records.recorder import Recorder
from servesim.records.step import Step

UNREAD = 64
"""Number of recorded arrivals from which those that a plan has already seen are dropped, each time their number has
doubled. Arrivals are recorded while steps are in flight."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Replica:
    """Replica that runs an EngineCore in simulated time.

    `depth` is the maximum number of planned but uncommitted steps. 1 is synchronous. 2 is asynchronous: step i + 1 is
    planned when step i starts, so an arrival during step i joins step i + 2. If a plan comes out empty, the replica
    plans again when a step ends, or when a request arrives while nothing is in flight. A cost model with several
    pipeline stages works on as many steps simultaneously; each additional stage increases `depth` by one.
    """

    def __init__(
        self,
        clock: Clock,
        index: int,
        core: EngineCore,
        cost: CostModel,
        recorder: Recorder,
        depth: int,
    ) -> None:
        self.clock = clock
        self.index = index
        self.cost = cost
        self.recorder = recorder
        self.depth = depth
        self.state: ReplicaState = "ready"
        self.pool, self.model = "", ""
        """Names of the replica's pool and of its model."""
        self.role: Role = "both"
        self.profiled: Callable[[], Profile]
        """Function that returns the performance of a replica of its pool; set by the fleet."""
        self.horizon: Callable[[], int | None] = lambda: None
        """Function that returns the estimated nanoseconds until a request has arrived here, or None if unknown."""
        self.up = True
        """Whether the replica accepts requests. It does not while it is down after a crash."""
        self.on_leave: Callable[[Request], None] = lambda request: None
        self._awaited: Event | None = None  # the valid completion event; earlier ones are void
        self._plan_due = False
        self._at_boundary: list[Callable[[], None]] = []
        self._unread: list[tuple[int, Request]] = []  # arrivals with steps in flight: (time, request)
        self._most_unread = UNREAD
        self._wire(core)

    def _wire(self, core: EngineCore) -> None:
        """Use this core from now on."""
        self.core = core
        core.on_leave = self._leave
        core.on_gap = self.recorder.gap
        core.on_late = self.recorder.late
        core.on_load = self._load
        own: Any = self.cost  # read through Any: mypyc would bind the class attribute
        self._free_ns = [0] * own.num_stages  # when each stage finishes all steps in flight
        if core.connector is not None:
            core.connector.join(self)
        if "timer" in core.scheduler.supports:
            core.scheduler.timer = CoreTimer(self, core)

    def crash(self, core: EngineCore) -> None:
        """Drop everything at this instant, including steps in flight, and go down. `core` is the core to restart with;
        it continues the numbering of steps. Tokens that requests have already received are kept."""
        self.catch_up()
        lost = self.core
        lost.on_leave = lambda request: None
        for request in [*lost.scheduler.running, *lost.scheduler.waiters()]:
            lost.abort(request, self.clock.ns)
        core.next_step_id, core.spec_stats, core.num_forked = lost.next_step_id, lost.spec_stats, lost.num_forked
        self.up, self._awaited, self._at_boundary = False, None, []
        self._wire(core)

    def reprice(self, cost: CostModel) -> None:
        """Price steps with a different cost model, starting with the next plan."""
        self.settle()
        self.cost = cost

    def catch_up(self) -> None:
        """Complete everything that ends now or earlier. Fast mode defers this work until it is needed."""

    @property
    def profile(self) -> Profile:
        """Performance of a replica of its pool."""
        return self.profiled()

    @property
    def num_waiting(self) -> int:
        """Number of requests that the last plan left waiting."""
        return self.core.scheduler.num_waiting() + self.core.num_loading - self.num_unread

    @property
    def num_unread(self) -> int:
        """Number of requests that arrived since the last plan."""
        if not self._unread:
            return 0
        self.settle()
        in_flight = self.core.in_flight
        planned_ns = in_flight[-1].planned_ns if in_flight else self.clock.ns
        self._unread = [(ns, r) for ns, r in self._unread if ns > planned_ns and r.state < State.FINISHED]
        return len(self._unread)

    @property
    def num_running(self) -> int:
        """Number of requests that hold a slot here."""
        return len(self.core.scheduler.running)

    @property
    def kv_usage(self) -> float:
        """Share of the KV memory that is in use, 0 to 1."""
        free, _ = self.observe()
        return 1 - free / self.core.kv.capacity_tokens

    def observe(self) -> tuple[int, int]:
        """Return the free tokens of KV memory, and when the running step ends, or a past time if none runs."""
        self.settle()
        in_flight = self.core.in_flight
        return self.core.kv.usage().free, in_flight[0].end_ns if in_flight else -1

    @property
    def at_ns(self) -> int:
        """Time of these figures in ns. It is always the current time, because the figures are never stale."""
        return self.clock.ns

    def settle(self) -> None:
        """Complete everything that ended before this instant. Fast mode defers this work until it is needed."""

    def listen(self, told: Callable[[int, int, KVEvent], None]) -> None:
        """Make the prefix cache also report to `told` each block that it stores or removes, as (replica, ns, event).
        Call it before the first step. Raise UserError if the cache does not report them."""
        self.core.listen(lambda event: told(self.index, self.clock.ns, event))

    def connect(self, connector: Connector, first: bool = False) -> None:
        """Let requests use KV that was computed remotely, as `EngineCore.connect` does. Call it before the first step.
        Raise UserError if a policy cannot wait for it."""
        self.core.connect(connector, first)
        connector.join(self)

    def _load(self, request: Request, end_ns: int) -> None:
        core = self.core
        self.clock.at(end_ns, LOADED, lambda event: remote_kv.loaded(self, request) if self.core is core else None)

    def go_on(self) -> None:
        """Plan at this instant if no step is in flight and there are requests, because memory or queues have
        changed."""
        if not self.core.in_flight and self.core.num_unfinished:
            self._want_plan()

    def at_boundary(self, call: Callable[[], None]) -> None:
        """Invoke `call` when the running step ends, or now if none is running."""
        if self.core.in_flight:
            self._at_boundary.append(call)
        else:
            call()

    def arrive(self, request: Request, output_len: int) -> None:
        """Accept a request that arrives at this instant."""
        self.core.add(request, output_len, self.clock.ns)
        if self.core.in_flight:
            self._came(request)
        else:
            self._want_plan()

    def _came(self, request: Request) -> None:
        """Record a request that arrives while a step runs."""
        if len(self._unread) >= self._most_unread and self.core.in_flight:
            last = self.core.in_flight[-1].planned_ns
            self._unread = [(ns, r) for ns, r in self._unread if ns > last]
            self._most_unread = max(UNREAD, 2 * len(self._unread))
        self._unread.append((self.clock.ns, request))

    def give_up(self, request: Request, deadline: Deadline) -> None:
        """Cancel a request whose client gives up at this instant, unless the awaited output was already delivered."""
        parent = request.parent
        if request.state >= State.FINISHED and (parent is None or request.sample != 1):
            return
        first_token_ns = request.first_token_ns if parent is None else parent.first_token_ns
        if deadline.first_token and first_token_ns >= 0:
            return
        for member in [request] if parent is None or request.sample != 1 else parent.sent:  # and forked samples
            self.core.abort(member, self.clock.ns, deadline.reason)
        if not self.core.in_flight:
            self._want_plan()

    def _want_plan(self) -> None:
        if not self._plan_due:
            self._plan_due = True
            self.clock.at(self.clock.ns, PLAN + self.index, self._plan_now)

    def _plan_now(self, event: Event) -> None:
        self._plan_due = False
        self._plan()

    def _plan(self) -> None:
        if self._fill():
            self._await(self.core.in_flight[0].end_ns)

    def _fill(self) -> bool:
        """Plan until the maximum number of steps is in flight or the scheduler has nothing to do. Return whether any
        step is in flight."""
        core, in_flight, now = self.core, self.core.in_flight, self.clock.ns
        while len(in_flight) < self.depth:
            step = core.plan(now)
            if core.last_plan is not None and (core.last_plan.rejected or core.kv.on_event is not None):
                self.clock.rejected = max(self.clock.rejected, (now, self.index))
            if step is not None:
                self._run(step, now)
            elif in_flight or not core.moved():
                break  # otherwise nothing would trigger a plan for the changed queues
        return bool(in_flight)

    def _run(self, step: Step, now: int) -> None:
        """Send a step to the GPU, which runs it after the steps before it."""
        ns, gpu_ns, (overlapped, exposed, launching), sources = self.cost.price(step.batch)
        if ns < 1:
            raise PolicyError(f"cost model: a step of {step.batch.linear_tokens} tokens takes {ns} ns")
        free = self._free_ns
        begin = now if now > free[0] else free[0]
        if self.core.not_before_ns > begin:
            self.core.stalled_ns += self.core.not_before_ns - begin
            begin = self.core.not_before_ns
        step.start_ns = end = begin
        if len(free) == 1:
            end = free[0] = end + ns
        else:
            end += ns - gpu_ns  # exposed host time delays the first stage
            for i, stage_ns in enumerate(self.cost.stages(step.batch)):
                end = free[i] = max(end, free[i]) + stage_ns
        step.end_ns = end
        step.gpu_ns, step.host_ns, step.sources = gpu_ns, overlapped + exposed + launching, sources
        connector, plan = self.core.connector, self.core.last_plan
        if connector is not None and plan is not None and (ends := connector.ran(plan._tokens, begin, end)) > end:
            self.core.stalled_ns += ends - end
            step.end_ns = free[-1] = ends

    def _await(self, end_ns: int) -> None:
        self._awaited = self.clock.at(end_ns, COMPLETE + self.index, self._complete)

    def _complete(self, event: Event) -> None:
        if event is not self._awaited:
            return
        self._commit()
        if self.clock.peek() > self.clock.ns:
            self._plan()  # nothing else happens at this instant
        else:
            self._want_plan()

    def _commit(self) -> None:
        """Commit the oldest step in flight, which has finished."""
        self._awaited = None
        step = self.core.in_flight[0]
        self.core.commit(self.clock.ns)
        self.recorder.step(step, self.index)
        self.boundary()

    def boundary(self) -> None:
        """Invoke the callbacks that were waiting for the end of a step."""
        if self._at_boundary:
            due, self._at_boundary = self._at_boundary, []
            for call in due:
                call()

    def _leave(self, request: Request) -> None:
        if request.owner is None:
            self.recorder.leave(request, self.index)
        self.on_leave(request)
