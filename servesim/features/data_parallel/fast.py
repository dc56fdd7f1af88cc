"""Data-parallel ranks in fast mode: rounds whose plans are known on all ranks are one event.

A run of rounds lasts as long as the plans of every rank are known (`LockstepLeap`), and each round as long as its
slowest rank. Ranks without requests take part with dummy steps. Whatever one rank needs to see or do ends the run of
all. Ranks with remote KV, drafts or several pipeline stages are stepped round by round.
"""

from __future__ import annotations

from collections.abc import Callable

from simpy.events import Event

from servesim.contracts.kv_events import KVEvent
from servesim.contracts.request import Request
from servesim.engine.clock import COMPLETE
from servesim.engine.core import EngineCore
from servesim.engine.fast.lockstep_leap import LockstepLeap
from servesim.engine.fast.replica import FastReplica
from servesim.features.data_parallel.group import Group
from servesim.features.data_parallel.prices import priced, priced_singly
from servesim.records.step import Step


class FastRank(FastReplica):
    """A rank that handles requests that decode together as a group. It leaps with the other ranks only."""

    group: FastGroup

    def listen(self, told: Callable[[int, int, KVEvent], None]) -> None:
        super().listen(told)
        self.core.step_plainly()

    def arrive(self, request: Request, output_len: int) -> None:
        self.core.add(request, output_len, self.clock.ns)
        if self.core.in_flight or self.leap is not None:
            self._came(request)
        self.group.want_plan()

    def catch_up(self) -> None:
        self.group.catch_up()

    def settle(self) -> None:
        self.group.settle()

    def _next_plan_from(self) -> int:
        return self.group.next_plan_from()

    def _want_plan(self) -> None:
        self.group.want_plan()

    def crash(self, core: EngineCore) -> None:
        super().crash(core)
        self.group.drop()


class FastGroup(Group[FastRank]):
    """The ranks of one replica on the clock, with few events."""

    def drop(self) -> None:
        super().drop()
        self._leaping: list[tuple[FastRank, LockstepLeap | None]] = []
        self._leap: LockstepLeap | None = None  # one of them; all skip as many planning points

    def want_plan(self) -> None:
        if self._leap is None:
            super().want_plan()
        elif self._cut(self.next_plan_from()):
            self._await_leap()

    def _plan_of(self, rank: FastRank, now: int) -> Step | None:
        return rank.fast.plan_known(now) or super()._plan_of(rank, now)

    def _plan(self) -> None:
        if len(self._rounds) == self._depth - 1 and self._prepare(1):
            self._await_leap()
            return
        self._fill()
        if len(self._rounds) == self._depth and self._prepare(0):
            self._await_leap()
        else:
            self._await()

    def _prepare(self, past: int) -> bool:
        """Begin the longest run of rounds from here. Return False if the next planning point must be real: this
        instant if `past` is 1, otherwise the end of the next round."""
        if len(self._free_ns) > 1:
            return False
        for rank in self.ranks:
            if not self._is_known(rank, past):
                return False
        horizon_ns = self.ranks[0].horizon()
        if horizon_ns is not None:
            horizon_ns //= len(self.ranks)  # an arrival at any of them ends the run
        going: list[LockstepLeap] = []
        leaps: list[LockstepLeap | None] = []
        for rank in self.ranks:
            leap = None
            if not rank.fast.rests:
                leap = LockstepLeap.prepare(rank.fast, None, self._clock.ns, horizon_ns, past)
                if leap is None:
                    return False
                going.append(leap)
            leaps.append(leap)
        if not going or not self._price(leaps, going):
            return False
        self._leaping, self._leap = [*zip(self.ranks, leaps, strict=True)], going[0]
        if horizon_ns is not None:
            self._cut(self._clock.ns + horizon_ns)
        for rank, leap in self._leaping:
            rank.leap = leap
        return True

    def _is_known(self, rank: FastRank, past: int) -> bool:
        """Return whether a rank's next plan is known, and the rank is in all rounds in flight (the plan then serves
        requests in lockstep) or in none (the plan is then empty)."""
        core = rank.fast
        lockstep, plan = core.lockstep, core.last_plan
        if lockstep is None or plan is None or core.connector is not None:
            return False
        if core.rests:
            return not (core.in_flight or core.num_unfinished)
        if not lockstep.members or len(core.in_flight) != len(self._rounds):
            return False
        return plan.layout == "mixed" and core.plans_known(past) > 0

    def _price(self, leaps: list[LockstepLeap | None], going: list[LockstepLeap]) -> bool:
        """Price the rounds of a run, which `going` take part in. Return False if the first one takes no time."""
        most, until_ns = min([leap.most for leap in going]), min([leap.until_ns for leap in going])
        batches = [None if leap is None else leap.batch for leap in leaps]
        if [rank for rank in self.ranks if rank.cost is not self._cost]:
            runs = priced_singly(self._by_rank, batches, most, until_ns)
        else:
            runs = priced(self._cost, batches, most, until_ns)
        for leap, run in zip(leaps, runs, strict=True):
            if leap is not None and run is not None:
                leap.take(run)
                leap.skip = len(run[1])
        return going[0].skip > 0

    def _await_leap(self) -> None:
        assert self._leap is not None
        self._awaited = self._clock.at(self._leap.end_ns, COMPLETE + self._first, self._leapt)

    def _leapt(self, event: Event) -> None:
        """End a run of rounds, and commit the one that ends now, rank by rank."""
        if event is not self._awaited:
            return
        self._close()
        for rank, leap in self._leaping:
            if leap is None:
                continue
            if rank.leap is None:  # landed, because the commit of another rank needed its state
                step = rank.core.in_flight[0]
                rank.core.commit(self._clock.ns)
                rank.recorder.step(step, rank.index)
            else:
                rank.leap = None
                self._free_ns[0] = leap.end(rank.fast, rank.recorder, rank.index)
            rank.boundary()
        self._take_rounds()
        self._go_on()

    def next_plan_from(self) -> int:
        """Return the earliest time at which a plan may take the current event into account."""
        now = self._clock.ns
        return now + 1 if self._clock.rejected >= (now, self._first) else now

    def _cut(self, now: int) -> bool:
        """Make the first planning point at or after `now` real. Return whether that changes anything."""
        assert self._leap is not None
        if not self._leap.cut(now):
            return False
        for _, leap in self._leaping:
            if leap is not None:
                leap.skip = self._leap.skip
        return True

    def catch_up(self) -> None:
        """End a run of rounds at this instant (see `FastReplica.catch_up`)."""
        if self._leap is None:
            self._land()
            return
        self._stop()
        if self._rounds[0][0] == self._clock.ns:
            self._awaited = None
            self._commit()
            self._plan_soon()
        else:
            self._await()

    def settle(self) -> None:
        """End a run of rounds at this instant, but leave one that ends now to its own completion event."""
        if self._leap is None:
            self._land()
            return
        self._stop()
        self._await()

    def _stop(self) -> None:
        """End a run of rounds at this instant, and leave one that ends now in flight."""
        self._cut(self.next_plan_from())
        self._close()
        self._land()
        self._take_rounds()

    def _close(self) -> None:
        """Count the rounds of a run that is over, and deliver those that were in flight when it began, so that records
        are in the order of time. The ranks that take part in it have yet to land."""
        assert self._leap is not None
        skip, self._leap = self._leap.skip, None
        leaping, self._leaping = self._leaping, []
        self.steps += skip
        self._since_sync += skip
        for rank, leap in leaping:
            if leap is None:
                rank.fast.rest(skip)
                self.dummies += skip
        for stop in range(self._depth - len(self._rounds) + 1, min(skip, self._depth) + 1):
            for rank, leap in leaping:
                if leap is not None:
                    leap.deliver(rank.fast, rank.recorder, rank.index, stop)
        self._leaping = leaping
        while len(self._rounds) >= self._depth:
            self._rounds.popleft()

    def _land(self) -> None:
        """Apply plans and commits of a run that is over to the ranks that have yet to land, if any."""
        for rank, leap in self._leaping:
            if leap is not None and rank.leap is not None:
                rank.leap = None
                self._free_ns[0] = leap.land(rank.fast, rank.recorder, rank.index)

    def _take_rounds(self) -> None:
        """Take the rounds in flight from the ranks, all of which have landed."""
        leaping, self._leaping = self._leaping, []
        first = next(rank for rank, leap in leaping if leap is not None)
        self._rounds.clear()
        for i, step in enumerate(first.core.in_flight):
            steps = [None if leap is None else rank.core.in_flight[i] for rank, leap in leaping]
            self._rounds.append((step.end_ns, steps))
