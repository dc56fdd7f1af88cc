"""Replica in simulated time that handles a run of steps whose plans are known as one event."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import mypyc_attr
from simpy.events import Event

from servesim.contracts.cost import CostModel
from servesim.contracts.request import Deadline, Request, State
from servesim.engine.clock import PLAN, Clock
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.cost import runs_of
from servesim.engine.fast.draft_leap import DraftLeap, can_run
from servesim.engine.fast.leap import Postponed, Run
from servesim.engine.fast.lockstep_leap import LockstepLeap
from servesim.engine.replica import Replica
from servesim.records.recorder import Recorder


@mypyc_attr(allow_interpreted_subclasses=True)
class FastReplica(Replica):
    """Replica that behaves the same as Replica but uses fewer events."""

    def __init__(
        self, clock: Clock, index: int, core: EngineCore, cost: CostModel, recorder: Recorder, depth: int
    ) -> None:
        self.leap: Run | None = None
        super().__init__(clock, index, core, cost, recorder, depth)

    def _wire(self, core: EngineCore) -> None:
        super()._wire(core)
        assert isinstance(core, FastCore)
        self.fast = core
        self._runs = runs_of(self.cost)
        self._leaps = len(self._free_ns) == 1
        core.on_late_together = self.recorder.late_together
        if self.depth == 1 or core.scheduler.limits.async_scheduling:
            core.keep_lockstep(self.depth)
        if core.memory is not None:
            core.memory.look = self._looked
        if core.lockstep is not None:
            core.lockstep.on_read = self.catch_up

    def reprice(self, cost: CostModel) -> None:
        super().reprice(cost)
        self._runs = runs_of(cost)

    def arrive(self, request: Request, output_len: int) -> None:
        self.core.add(request, output_len, self.clock.ns)
        if self.core.in_flight or self.leap is not None:
            self._came(request)
        if self.leap is not None:
            if self.leap.cut(self._next_plan_from()):
                self._await(self.leap.end_ns)
        elif not self.core.in_flight:
            self._want_plan()

    def give_up(self, request: Request, deadline: Deadline) -> None:
        parent = request.parent
        if request.state >= State.FINISHED and (parent is None or request.sample != 1):
            return
        self.catch_up()
        super().give_up(request, deadline)

    def go_on(self) -> None:
        if self.leap is None:  # else steps are in flight
            super().go_on()

    def at_boundary(self, call: Callable[[], None]) -> None:
        self.catch_up()
        super().at_boundary(call)

    def _looked(self) -> None:
        """See `LockstepMemory.look`."""
        memory = self.fast.memory
        assert memory is not None
        memory.looked = True
        if self.leap is not None:
            self.catch_up()

    def catch_up(self) -> None:
        """End a run of steps at this instant, for callers that need the replica's current state. Apply the steps done
        so far and actually make the next plan."""
        leap, self.leap = self.leap, None
        if leap is None:
            return
        changed = leap.cut(self._next_plan_from())
        self._free_ns[0] = leap.land(self.fast, self.recorder, self.index)
        core = self.core
        if core.in_flight[0].end_ns == self.clock.ns:
            self._commit()
            self._want_plan()
        elif changed:
            self._await(core.in_flight[0].end_ns)

    def observe(self) -> tuple[int, int]:
        if self.leap is not None and self.leap.postponed:
            self._work_out()
        leap = self.leap
        seen = leap.seen_at(self.fast, self._next_plan_from()) if leap is not None else None
        return super().observe() if seen is None else seen

    def settle(self) -> None:
        """End a run at this instant, but leave a step that ends now to its own completion event."""
        leap, self.leap = self.leap, None
        if leap is None:
            return
        leap.cut(self._next_plan_from())
        self._free_ns[0] = leap.land(self.fast, self.recorder, self.index)
        self._await(self.core.in_flight[0].end_ns)

    def _next_plan_from(self) -> int:
        """Return the earliest time at which a plan may take the current event into account."""
        now = self.clock.ns
        return now + 1 if self.clock.rejected >= (now, self.index) else now

    def _plan(self) -> None:
        core, in_flight, now = self.fast, self.core.in_flight, self.clock.ns
        leaps, lockstep = self._leaps, core.lockstep
        if leaps and lockstep is not None and lockstep.members and len(in_flight) == self.depth - 1:
            self.leap = LockstepLeap.prepare(core, self._runs, now, self.horizon(), 1)
            if self.leap is not None:
                self._await(self.leap.end_ns)
                if core.listened:
                    self._plan_reports(self.leap)
                return
        if not in_flight and core.is_next_empty():
            return
        if not self._fill():
            return
        if leaps and len(in_flight) == self.depth:
            self.leap = self._prepare()
        self._await(self.leap.end_ns if self.leap is not None else in_flight[0].end_ns)
        if core.listened and self.leap is not None:
            self._plan_reports(self.leap)

    def _plan_reports(self, leap: Run) -> None:
        """Let memory report blocks at the planning points of a run, this instant included, as if they were real."""
        ns = leap.next_report_ns(self.fast)
        if ns == self.clock.ns:
            self.clock.rejected = max(self.clock.rejected, (ns, self.index))
            leap.report(self.fast)
            ns = leap.next_report_ns(self.fast)
        if ns is not None:
            self.clock.at(ns, PLAN + self.index, lambda event: self._plan_reports(leap) if self.leap is leap else None)

    def _prepare(self) -> Run | None:
        """Return the longest run of steps from here whose plans are known. The maximum number of steps must be in
        flight."""
        core = self.fast
        if core.lockstep is not None:
            if not core.lockstep.members:
                return None
            if core.last_plan is not None and core.last_plan.loading:
                return Postponed(core.in_flight[0].end_ns, self.clock.ns, self.horizon())
            return LockstepLeap.prepare(core, self._runs, self.clock.ns, self.horizon(), 0)
        return DraftLeap.prepare(core, self.cost, self._runs, self.horizon()) if can_run(core) else None

    def _work_out(self) -> None:
        """Work out a postponed run. Nothing has changed since it was postponed, or it would have been cut."""
        leap = self.leap
        assert isinstance(leap, Postponed)
        self.leap = LockstepLeap.prepare(self.fast, self._runs, leap.since_ns, leap.horizon_ns, 0)
        if self.leap is not None:
            self._await(self.leap.end_ns)

    def _complete(self, event: Event) -> None:
        if self.leap is not None and self.leap.postponed and event is self._awaited:
            self._work_out()
        leap = self.leap
        if leap is None or event is not self._awaited:
            super()._complete(event)  # also if an arrival or an abort cut short the run that this event was to end
            return
        self._awaited = self.leap = None
        self._free_ns[0] = leap.end(self.fast, self.recorder, self.index)
        if self.clock.peek() > self.clock.ns:
            self._plan()  # nothing else happens at this instant
        else:
            self._want_plan()
