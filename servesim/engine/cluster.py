"""N replicas behind a router on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from simpy.events import Event

from servesim.contracts.part import Part, verbs
from servesim.contracts.request import Deadline, Request, State
from servesim.contracts.router import WAIT, Decision, Pair, Reject, ReplicaState, Router, Wait
from servesim.engine.checks import check_served
from servesim.engine.clock import ABORT, ARRIVE, FOLLOW, Clock
from servesim.engine.core import EngineCore
from servesim.engine.fleet import ENTRANCE, Fleet
from servesim.engine.modes import MODES
from servesim.engine.pool import Pool
from servesim.engine.replica import Replica
from servesim.engine.telling import Telling
from servesim.engine.waiting import Waiting
from servesim.errors import PolicyError, UserError
from servesim.plugins.user_policies import blaming
from servesim.records.recorder import Recorder
from servesim.workload.workload import Workload

PROGRESS_EVERY = 64  # requests
P = TypeVar("P", bound=Part)


class Cluster:
    """Cluster that serves a workload until its last request has left.

    `mode` is "fast" or "reference" (see MODES, which names the classes of the cores and their memory). Reference mode
    plans, prices and commits every step separately; fast mode gives the same results to the nanosecond. `only` limits
    this process to the requests routed to these replicas; other processes serve the rest (servesim.run.processes).
    `parts` are the optional parts of a run (servesim.contracts.part), in order.
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
        parts: Sequence[Part] = (),
    ) -> None:
        self._mode = mode
        self.clock = Clock()
        self.recorder = recorder or Recorder()
        self._only = only
        self.recorder.join = mode == "fast"
        self.workload = workload
        self.router = router
        self.fleet = Fleet(pools, self._make)
        self.replicas = self.fleet.replicas
        self.fleet.foretell(workload)
        self._answers_matter = not workload.open_loop
        self.num_arrived = self.num_left = 0
        self._on_progress = on_progress
        self._armed: Event | None = None
        self._armed_ns = -1
        self.arrive_order = ARRIVE
        self.waiting = Waiting(self.clock, self._decide, self._act)
        forks = bool(self.replicas) and self.replicas[0].core.scheduler.samples == "fork"
        self.telling = Telling(router, self.clock, self.waiting.recall, forks=forks)
        self.parts: list[Part] = []
        self.add(self.telling, *parts)

    def add(self, *parts: Part) -> None:
        """Add these parts to the run. Call this before the first event."""
        self.parts += parts
        self._core_made = verbs(self.parts, "core_made")
        self._sent, self._reaches = verbs(self.parts, "sent"), verbs(self.parts, "reaches")
        self._sends = verbs(self.parts, "sends")
        self._takes, self._gives_up = verbs(self.parts, "takes"), verbs(self.parts, "gives_up")
        self._state_changed, self._on_left = verbs(self.parts, "state_changed"), verbs(self.parts, "left")
        self._crashed, self._lost = verbs(self.parts, "crashed"), verbs(self.parts, "lost")
        self._passed_on, self._keeps = verbs(self.parts, "passed_on"), verbs(self.parts, "keeps")
        self._network_changed, self._replacing = verbs(self.parts, "network_changed"), verbs(self.parts, "replacing")
        for part in parts:
            part.join(self)
        for replica in self.replicas:
            for made in verbs(parts, "core_made"):
                made(replica)

    def part(self, cls: type[P]) -> P | None:
        """Return the part of the given class, or None if there is none."""
        return next((part for part in self.parts if isinstance(part, cls)), None)

    def new_core(self, replica: Replica) -> None:
        """Notify all parts that a replica is starting a new core."""
        for made in self._core_made:
            made(replica)

    def set_state(self, index: int, state: ReplicaState) -> None:
        """Set the state of a replica, and of all that form one server with it, and notify all parts."""
        self.fleet.set_state(index, state)
        for each in self.fleet.server(index):
            for changed in self._state_changed:
                changed(each, state)

    def crashed(self, index: int) -> list[Request]:
        """Notify all parts that a replica has lost all its state; return the requests lost with it that parts had
        there."""
        return [request for crashed in self._crashed for request in crashed(index)]

    def lost(self, request: Request) -> None:
        """Notify all parts that a request was lost with its replica, before it is rerouted or fails."""
        for lost in self._lost:
            lost(request)

    def keeps(self, index: int) -> bool:
        """Return whether any part keeps a draining replica that has no unfinished request."""
        return any(keeps(index) for keeps in self._keeps)

    @property
    def has_network(self) -> bool:
        """Whether any part sends something over a network."""
        return bool(self._network_changed)

    def network_changed(self, index: int, factor: float) -> None:
        """Notify all parts that the network links of a replica have their bandwidth divided by `factor` from now on."""
        for changed in self._network_changed:
            changed(index, factor)

    def replacing(self, pool: Pool) -> list[tuple[int, int]]:
        """Return the replicas of a pool that parts are replacing, each with its successor or -1."""
        return [pair for replacing in self._replacing for pair in replacing(pool)]

    def _make(self, index: int, core: EngineCore, pool: Pool) -> Replica:
        replica = pool.made_of.get(self._mode, MODES[self._mode].replica)(
            self.clock, index, core, pool.cost, self.recorder, pool.depth
        )
        replica.on_leave, replica.horizon = self._leave, self._horizon
        return replica

    @property
    def now_ns(self) -> int:
        """Current simulated time in ns."""
        return self.clock.ns

    @property
    def num_waiting(self) -> int:
        """Number of requests waiting in the router."""
        return self.waiting.num_waiting + sum(part.held() for part in self.parts)

    @property
    def busy(self) -> bool:
        """Whether any request has not left yet or is yet to arrive."""
        forked = sum(replica.core.num_forked for replica in self.replicas)
        return self.num_left < self.num_arrived + forked or self.workload.remaining() > 0

    def run(self) -> None:
        """Serve all requests. Raise PolicyError if a policy violates its contract or starves a request."""
        with self._blaming():
            self.start()
            self.clock.run()
            self.recorder.close()
            check_served(self)

    def _blaming(self) -> AbstractContextManager[None]:
        cores = [replica.core for replica in self.replicas]
        policies = [self.router, *(p for c in cores for p in (c.scheduler, c.kv, c.speculator, c.acceptance))]
        return blaming([type(policy) for policy in (*policies, *self.parts)], lambda: f" at {self.now_ns} ns")

    def start(self) -> None:
        """Schedule the first arrival, as `run` does before it starts the clock."""
        for part in self.parts:
            part.start()
        self.arm()

    def step(self) -> bool:
        """Process one event. Return False if none is left."""
        if self.clock.peek() == float("inf"):
            self.recorder.close()
            return False
        with self._blaming():
            self.clock.step()
        return True

    def advance(self, until_ns: int) -> None:
        """Process all events up to and including `until_ns`."""
        if self.clock.peek() <= until_ns:
            with self._blaming():
                while self.clock.peek() <= until_ns:
                    self.clock.step()

    def arm(self) -> None:
        """Schedule a wake-up at the next arrival."""
        self._arm(self.workload.next_ns())

    def _arm(self, due: int | None) -> None:
        if due is None or (self._armed is not None and self._armed_ns <= due):
            return
        self._armed = self.clock.at(due, self.arrive_order if due > self.clock.ns else FOLLOW, self._arrive)
        self._armed_ns = due

    def _arrive(self, event: Event) -> None:
        if event is not self._armed:
            return  # an earlier arrival was scheduled in the meantime
        self._armed = None
        now, workload = self.clock.ns, self.workload
        while (due := workload.next_ns()) == now:
            popped = workload.pop()
            if popped is None:
                continue
            request, output_len = popped
            for deadline in request.deadlines:
                self.clock.at(max(deadline.ns, now), ABORT, partial(self.give_up, request, deadline))
            self.num_arrived += 1
            self.place(request, output_len)
        self._arm(due)

    # Lifecycle of a request.

    def enter(self, request: Request, output_len: int) -> None:
        """Let a request arrive that a part has made."""
        self.num_arrived += 1
        self.place(request, output_len)

    def place(self, request: Request, output_len: int) -> None:
        """Carry out the router's decision for a request, unless a part sends it."""
        if self._sends and any(sends(request, output_len) for sends in self._sends):
            return
        decision = self._decide(request)
        if isinstance(decision, int) and not self._takes:
            self._send(request, output_len, decision)
        elif isinstance(decision, Wait):
            model = request.model if self.fleet.models else ""
            self.waiting.hold(self.router.queue_key(request), request, output_len, model, decision)
        else:
            self._act(request, output_len, decision)

    def _decide(self, request: Request) -> Decision:
        parent = request.parent
        if parent is not None and parent.replica >= 0:
            return parent.replica  # related requests are served together
        if not self.fleet.offer(request):
            return WAIT
        return self.router.route(request, self.fleet.views)

    def _act(self, request: Request, output_len: int, decision: Decision) -> None:
        if self._takes and any(takes(request, output_len, decision) for takes in self._takes):
            return
        if isinstance(decision, int):
            self._send(request, output_len, decision)
        elif isinstance(decision, Reject):
            if self._only is None or 0 in self._only:
                self.end(request, State.REJECTED, f"refused by the router ({decision.status})")
        else:
            assert isinstance(decision, Pair)
            raise UserError(f"router {self.router.name} chooses a pair of replicas, but no replica is for prefill only")

    def _send(self, request: Request, output_len: int, index: int) -> None:
        if not 0 <= index < len(self.replicas):
            raise PolicyError(f"{self.router.name} at {self.now_ns} ns: routes {request} to replica {index}")
        if request.parent is not None:
            request.parent.replica = index
        if self._only is not None and index not in self._only:
            self.num_arrived -= 1
            return
        request.replica = index
        for sent in self._sent:
            sent(request, output_len, index)
        for reaches in self._reaches:
            if not reaches(request, index):
                return
        self.replicas[index].arrive(request, output_len)

    def tell_sent(self, request: Request, output_len: int, index: int) -> None:
        """Notify all parts that a request is being sent to a replica."""
        for sent in self._sent:
            sent(request, output_len, index)

    def tell_passed_on(self, request: Request, output_len: int, index: int) -> None:
        """Notify all parts that a request goes to a replica for answers."""
        for passed_on in self._passed_on:
            passed_on(request, output_len, index)

    def held_for(self, pool: Pool) -> int:
        """Return the number of requests outside of all replicas that may be sent to this pool: those in the router,
        unless the pool only computes answers, and those in parts."""
        waiting = self.waiting.num_for(pool.serves) if pool.role in ENTRANCE else 0
        return waiting + sum(part.held_for(pool) for part in self.parts)

    def reaches(self, request: Request, index: int) -> bool:
        """Return whether a request that was sent reaches its replica; if not, a part has handled it."""
        return not self._reaches or all(reaches(request, index) for reaches in self._reaches)

    def end(self, request: Request, state: State, reason: str) -> None:
        """End a request that is not at any replica."""
        request.state, request.reason, request.finished_ns = state, reason, self.clock.ns
        self.recorder.leave(request, request.replica)
        if self.waiting.drop(request):
            self.telling.dropped(request)
        self.gone(request)

    def give_up(self, request: Request, deadline: Deadline, event: Event) -> None:
        """Cancel a request whose client gives up now."""
        if self._gives_up and any(gives_up(request, deadline) for gives_up in self._gives_up):
            return
        if request.replica >= 0:
            self.replicas[request.replica].give_up(request, deadline)
        elif request.state < State.FINISHED and not (deadline.first_token and request.first_token_ns >= 0):
            self.end(request, State.ABORTED, deadline.reason)

    def _leave(self, request: Request) -> None:
        self.gone(request)
        self.telling.finish(request)

    def gone(self, request: Request) -> None:
        """Remove from the run a request that has left its replica permanently."""
        self.num_left += 1
        for left in self._on_left:
            left(request)
        self.workload.on_finish(request, self.clock.ns)
        if self._answers_matter:
            self.arm()
        if self._on_progress is not None and self.num_left % PROGRESS_EVERY == 0:
            self._on_progress(self.now_ns, self.num_left)

    def _horizon(self) -> int | None:
        """Return the estimated time in nanoseconds until each replica receives an arrival, or None if unknown."""
        due = self._armed_ns if self._armed is not None else None
        return (due - self.clock.ns) * len(self.replicas) if due is not None else None
