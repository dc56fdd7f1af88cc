"""Data-parallel ranks: separate schedulers whose steps begin and end together.

Each rank plans, verifies and commits as a replica does. Experts are spread over the GPUs of all ranks, so no rank can
compute a step without the others: they plan at the same instant, the slowest sets the duration (a barrier), and a rank
that has nothing to do still takes part (a dummy step). vLLM's ranks check whether all have finished only every 32 steps
(`finish_sync`; DPEngineCoreProc._has_global_unfinished_reqs). Until then they make dummy steps, and a request that
arrives has to wait for them. The ranks of SGLang and TensorRT-LLM check in every step (1).

Steps are simulated one by one in fast mode too: runs of steps are not skipped, but requests that decode together are
counted together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.cost import CostModel
from servesim.contracts.part import ClusterView, Part
from servesim.engine.clock import COMPLETE, PLAN, Clock
from servesim.engine.fast.replica import FastReplica
from servesim.engine.pool import Pool
from servesim.engine.replica import Replica
from servesim.errors import PolicyError
from servesim.records.step import Step


class DataParallel(NamedTuple):
    """Settings for how a replica's ranks step together."""

    ranks: int
    finish_sync: int = 1
    """Number of steps between checks of whether any rank still has work to do."""


class Rank(Replica):
    """A data-parallel rank, which plans when its group does."""

    group: Group

    def _want_plan(self) -> None:
        self.group.want_plan()


class FastRank(FastReplica):
    """A rank that handles requests that decode together as a group; its steps are simulated one by one."""

    group: Group

    def _want_plan(self) -> None:
        self.group.want_plan()


RANKS: Mapping[str, type[Replica]] = {"reference": Rank, "fast": FastRank}
"""Rank classes by mode."""


class Ranks(Part):
    """Part that groups consecutive replicas of some pools as ranks. `terms`: the pools, each with the settings for how
    its ranks step together. Create the part before the cluster."""

    def __init__(self, terms: Sequence[tuple[Pool, DataParallel]]) -> None:
        self._terms = terms
        self.groups: list[Group] = []
        for pool, _ in terms:
            pool.made_of = RANKS

    def join(self, cluster: ClusterView) -> None:
        for pool, terms in self._terms:
            ranks = [r for r, of in zip(cluster.replicas, cluster.fleet.pool_of, strict=True) if of is pool]
            for at in range(0, len(ranks), terms.ranks):
                group = Group(cluster.clock, ranks[at : at + terms.ranks], pool.cost, terms.finish_sync)
                for rank in ranks[at : at + terms.ranks]:
                    rank.group = group
                self.groups.append(group)


class Group:
    """The ranks of one replica on the clock. `steps`: steps of the group so far; `dummies`: steps of individual ranks
    that had nothing to compute."""

    def __init__(self, clock: Clock, ranks: Sequence[Replica], cost: CostModel, finish_sync: int) -> None:
        self._clock, self._ranks, self._cost, self._finish_sync = clock, ranks, cost, finish_sync
        self._rounds: deque[tuple[int, list[Step | None]]] = deque()  # in flight: end and steps of each round
        self._first, self._depth = ranks[0].index, ranks[0].depth
        self._plan_due = False
        self._free_ns = 0
        self._since_sync = 0
        self.steps = self.dummies = 0

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
        """Plan until the maximum number of steps is in flight, or no rank has anything to do."""
        rounds, now = self._rounds, self._clock.ns
        while len(rounds) < self._depth:
            steps = [self._plan_of(rank, now) for rank in self._ranks]
            if any(step is not None for step in steps):
                self._run(steps, now)
            elif rounds or self._since_sync % self._finish_sync == 0:
                break
            else:  # no rank knows yet that all are done
                self._run(steps, now)
                break
        if rounds:
            self._clock.at(rounds[0][0], COMPLETE + self._first, self._complete)
        else:
            self._since_sync = 0

    def _plan_of(self, rank: Replica, now: int) -> Step | None:
        """Return the next step of a rank, or None if it has nothing to do."""
        core = rank.core
        while True:
            step = core.plan(now)
            if core.last_plan is not None and core.last_plan.rejected:
                self._clock.rejected = max(self._clock.rejected, (now, rank.index))
            if step is not None or core.in_flight or not core.moved():
                return step

    def _run(self, steps: list[Step | None], now: int) -> None:
        """Send a step of every rank to the GPUs."""
        prices = self._cost.prices([step.batch if step is not None else None for step in steps])
        ns = max(price.ns for price in prices)
        if ns < 1:
            raise PolicyError(f"cost model: a step of {len(steps)} ranks takes {ns} ns")
        start = max(now, self._free_ns)
        end = self._free_ns = start + ns
        for step, price in zip(steps, prices, strict=True):
            if step is None:
                self.dummies += 1
                continue
            step.start_ns, step.end_ns = start, end
            step.gpu_ns, step.host_ns, step.sources = price.gpu_ns, sum(price.host), price.sources
        self._rounds.append((end, steps))
        self._since_sync += 1
        self.steps += 1

    def _complete(self, event: Event) -> None:
        """Commit the oldest step in flight, which is done."""
        _, steps = self._rounds.popleft()
        now = self._clock.ns
        for rank, step in zip(self._ranks, steps, strict=True):
            if step is not None:
                rank.core.commit(now)
                rank.recorder.step(step, rank.index)
                rank.boundary()
        if self._clock.peek() > now:
            self._plan()  # nothing else happens at this instant
        else:
            self._plan_soon()
