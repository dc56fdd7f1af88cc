"""Group of data-parallel ranks on the clock: rounds of steps, one a rank, which begin and end together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from simpy.events import Event

from servesim.contracts.cost import Batch, CostModel, Price
from servesim.engine.clock import COMPLETE, PLAN, Clock
from servesim.engine.core import EngineCore
from servesim.engine.replica import Replica
from servesim.errors import PolicyError
from servesim.records.step import Step

T = TypeVar("T")
R = TypeVar("R", bound=Replica)


class DataParallel(NamedTuple):
    """Settings for how a replica's ranks step together."""

    ranks: int
    finish_sync: int = 1
    """Number of steps between checks of whether any rank still has work to do."""
    after_first: bool = False
    """Whether ranks also check after the first step since they were idle."""
    while_loading: bool = False
    """Whether requests that wait for their KV count as work, so that ranks make dummy steps until it has come."""


class Rank(Replica):
    """A data-parallel rank, which plans when its group does."""

    group: Group[Rank]

    def _want_plan(self) -> None:
        self.group.want_plan()

    def crash(self, core: EngineCore) -> None:
        super().crash(core)
        self.group.drop()


class Group(Generic[R]):
    """The ranks of one replica on the clock. `steps`: steps of the group so far; `dummies`: steps of individual ranks
    that had nothing to compute."""

    def __init__(self, clock: Clock, first: R, terms: DataParallel) -> None:
        self.ranks: list[R] = []
        self._clock, self._terms = clock, terms
        self._cost, self._first, self._depth = first.cost, first.index, first.depth
        self._plan_due = False
        self.drop()
        self.steps = self.dummies = 0

    def drop(self) -> None:
        """Drop the steps in flight, which have been lost with their ranks."""
        self._rounds: deque[tuple[int, list[Step | None]]] = deque()  # in flight: end and steps of each round
        self._awaited: Event | None = None  # the valid completion event
        self._free_ns = [0] * self._cost.num_stages  # when each stage finishes all steps in flight
        self._since_sync = 0

    def want_plan(self) -> None:
        """Plan at this instant, unless steps are in flight that must end first."""
        if not self._rounds:
            self._plan_soon()

    def _plan_soon(self) -> None:
        if not self._plan_due:
            self._plan_due = True
            self._clock.at(self._clock.ns, PLAN + self._first, self._plan_now)

    def _plan_now(self, event: Event) -> None:
        self._plan_due = False
        self._plan()

    def _plan(self) -> None:
        self._fill()
        self._await()

    def _fill(self) -> None:
        """Plan until the maximum number of steps is in flight, or no rank has anything to do."""
        rounds, now = self._rounds, self._clock.ns
        while len(rounds) < self._depth:
            steps = [self._plan_of(rank, now) for rank in self.ranks]
            if any(steps):
                self._run(steps, now)
            elif rounds or self._stops():
                break
            else:  # no rank knows yet that all are done
                self._run(steps, now)
                break

    def _await(self) -> None:
        """Wait for the end of the oldest step in flight."""
        rounds = self._rounds
        if rounds:
            idle = not any(rounds[0][1])
            self._clock.background += idle  # what they wait for keeps the simulation going, or they wait forever
            self._awaited = self._clock.at(rounds[0][0], COMPLETE + self._first, partial(self._complete, idle))
        else:
            self._since_sync = 0

    def _stops(self) -> bool:
        """Return whether ranks that have nothing to plan stop."""
        terms, count = self._terms, self._since_sync
        if self.ranks[0].state == "gone":
            return True
        if count % terms.finish_sync and not (terms.after_first and count == 1):
            return False
        loading = terms.while_loading and any(rank.core.num_loading for rank in self.ranks)
        return not (loading and self._clock.goes_on)

    def _plan_of(self, rank: R, now: int) -> Step | None:
        """Return the next step of a rank, or None if it has nothing to do."""
        core = rank.core
        while True:
            step = core.plan(now)
            if core.last_plan is not None and (core.last_plan.rejected or core.kv.on_event is not None):
                self._clock.rejected = max(self._clock.rejected, (now, rank.index))
            if step is not None or core.in_flight or not core.moved():
                return step

    def _run(self, steps: list[Step | None], now: int) -> None:
        """Send a step of every rank to the GPUs. It begins when all have written out the memory that it needs, and ends
        when the slowest has computed, loaded and stored everything."""
        batches = [step.batch if step is not None else None for step in steps]
        prices = self._by_rank(lambda cost: cost.prices(batches))
        free = max(now, self._free_ns[0])
        start = max([free, *[rank.core.not_before_ns for rank in self.ranks]])
        end = computed = self._computed(batches, prices, start)
        for rank, step in zip(self.ranks, steps, strict=True):
            if start > free or rank.core.connector is not None:
                end = max(end, self._moved(rank, step, free, start, computed))
        self._free_ns[-1] = end
        for step, price in zip(steps, prices, strict=True):
            if step is None:
                self.dummies += 1
                continue
            step.start_ns, step.end_ns = start, end
            step.gpu_ns, step.host_ns, step.sources = price.gpu_ns, sum(price.host), price.sources
        self._rounds.append((end, steps))
        self._since_sync += 1
        self.steps += 1

    def _by_rank(self, ask: Callable[[CostModel], list[T]]) -> list[T]:
        """Return what each rank's cost model says of its own part; a rank has its own model while it is slow."""
        found = ask(self._cost)
        for i, rank in enumerate(self.ranks):
            if rank.cost is not self._cost:
                found[i] = ask(rank.cost)[i]
        return found

    def _computed(self, batches: Sequence[Batch | None], prices: Sequence[Price], start: int) -> int:
        """Return when the slowest rank has computed its part of a step that begins at `start`; on each of several
        pipeline stages, ranks wait for each other."""
        ns, free = max([price.ns for price in prices]), self._free_ns
        if ns < 1:
            raise PolicyError(f"cost model: a step of {len(prices)} ranks takes {ns} ns")
        if len(free) == 1:
            return start + ns
        end = start + max(price.ns - price.gpu_ns for price in prices)  # exposed host time delays the first stage
        for i, stage in enumerate(zip(*self._by_rank(lambda cost: cost.rank_stages(batches)), strict=True)):
            end = free[i] = max(end, free[i]) + max(stage)
        return end

    def _moved(self, rank: Replica, step: Step | None, free: int, start: int, computed: int) -> int:
        """Return when a rank's step ends that is computed from `start` to `computed`, with the KV that it loads and
        stores. Count the time for which the rank delayed the group since it was `free`."""
        core = rank.core
        core.stalled_ns += max(core.not_before_ns - free, 0)
        if core.connector is None or step is None or core.last_plan is None:
            return computed
        end = core.connector.ran(core.last_plan._tokens, start, computed)
        core.stalled_ns += max(end - computed, 0)
        return max(end, computed)

    def _complete(self, idle: bool, event: Event) -> None:
        """Commit the oldest step in flight, which is done. `idle`: no rank had anything to compute."""
        self._clock.background -= idle
        if event is self._awaited:
            self._commit()
            self._go_on()

    def _commit(self) -> None:
        """Commit the oldest step in flight."""
        _, steps = self._rounds.popleft()
        now = self._clock.ns
        for rank, step in zip(self.ranks, steps, strict=True):
            if step is not None:
                rank.core.commit(now)
                rank.recorder.step(step, rank.index)
                rank.boundary()

    def _go_on(self) -> None:
        """Plan at this instant."""
        if self._clock.peek() > self._clock.ns:
            self._plan()  # nothing else happens at this instant
        else:
            self._plan_soon()
