"""Replicas that come and go: the input of autoscalers, and the effect of their output.

When scaling up, a new replica gets the next index, is ready after its start-up time and then takes requests
immediately. When scaling down, starting replicas are removed first, then ready ones drain, the highest index first in
each case: they get no new requests and are gone when empty. A draining replica is not reused: a new one starts (as in
Dynamo's replay). A replica that a rolling upgrade replaces and its successor count as one. Pools of different roles
come and go independently; a prefill replica stays until the KV of its prompts has been read, and any replica until it
has had all samples of its requests. The data-parallel ranks of a replica come and go together, and it reports their
sums (memory: their mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from simpy.events import Event

from servesim.contracts.part import ClusterView, Part
from servesim.contracts.request import ParentRequest, Request, State
from servesim.contracts.router import ReplicaState, Report
from servesim.contracts.scaler import PoolLoad, Scaler
from servesim.engine import turnover
from servesim.engine.clock import REPORT
from servesim.engine.pool import Pool
from servesim.features.scaling.counts import Counts, Latencies

IDLE_TICKS = 100_000
"""Number of consecutive queries after which waiting requests are given up if nothing else happens."""


@dataclass
class Scaled:
    """A pool with an autoscaler, which it may share with other pools."""

    pool: Pool
    scaler: Scaler
    start_ns: int
    """Time that a replica takes to start."""
    least: int
    most: int
    wanted: list[tuple[int, int]] = field(default_factory=list)
    """(ns, replicas wanted) at each change."""


@dataclass
class Asked:
    """An autoscaler, its pools, and what happened in each pool of the run since the last query."""

    scaler: Scaler
    scaled: list[Scaled]
    counts: dict[str, Counts]
    """Counts by name of the pool: all of them if the autoscaler needs "pools", otherwise its own."""
    idle: int = 0


class Scaling(Part):
    """Part that queries the autoscalers of a cluster's pools and applies their decisions."""

    def __init__(self, scaled: list[Scaled]) -> None:
        self.scaled = scaled
        self._parents: dict[ParentRequest, int] = {}  # that were sent: number of samples that have left

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        groups: dict[int, list[Scaled]] = {}
        for each in self.scaled:
            groups.setdefault(id(each.scaler), []).append(each)
        self._asked = [self._asked_of(group, cluster.fleet.pools) for group in groups.values()]
        self._counts: dict[str, list[Counts]] = {pool.name: [] for pool in cluster.fleet.pools}
        for asked in self._asked:
            for name, counts in asked.counts.items():
                self._counts[name].append(counts)

    def _asked_of(self, group: list[Scaled], pools: Sequence[Pool]) -> Asked:
        scaler, own = group[0].scaler, [each.pool for each in group]
        seen = pools if "pools" in scaler.needs else own
        make = Latencies if "latency" in scaler.needs else Counts
        return Asked(scaler, group, {pool.name: make() for pool in seen})

    def start(self) -> None:
        for asked in self._asked:
            self._at(asked)

    def _at(self, asked: Asked) -> None:
        clock = self._cluster.clock
        clock.background += 1
        clock.at(clock.ns + round(asked.scaler.every_s * 1e9), REPORT, partial(self._ask, asked))

    def sent(self, request: Request, output_len: int, index: int) -> None:
        if request.parent is not None:
            self._parents.setdefault(request.parent, 0)
        for counts in self._counts.get(self._cluster.fleet.pool_of[index].name, ()):
            counts.arrive(request)

    def passed_on(self, request: Request, output_len: int, index: int) -> None:
        for counts in self._counts.get(self._cluster.fleet.pool_of[index].name, ()):
            counts.arrive(request)

    def left(self, request: Request) -> None:
        cluster, parent = self._cluster, request.parent
        index = request.replica if parent is None else parent.replica  # forked samples are sent nowhere
        if parent is not None:
            self._sample_left(request, parent)
        if index < 0:
            return
        if request.state is State.FINISHED:
            for counts in self._counts.get(cluster.fleet.pool_of[index].name, ()):
                counts.finish(request)
        turnover.left_draining(cluster, index)

    def _sample_left(self, request: Request, parent: ParentRequest) -> None:
        if parent not in self._parents:
            return
        self._parents[parent] += request.sample > 0
        alone = request.sample < 0 and request.state is not State.FINISHED  # its prompt failed, so there are no samples
        if alone or self._parents[parent] == len(parent.sent):
            del self._parents[parent]

    def keeps(self, index: int) -> bool:
        """Return whether samples of a request that this replica has served in part are still to come to it."""
        return any(parent.replica == index for parent in self._parents)

    def _ask(self, asked: Asked, event: Event) -> None:
        clock = self._cluster.clock
        clock.background -= 1
        loads = self._loads(asked)
        answers = asked.scaler.wanted_of(
            {each.pool.name: loads[each.pool.name]._replace(least=each.least, most=each.most) for each in asked.scaled}
        )
        for counts in asked.counts.values():
            counts.clear()
        for each in asked.scaled:
            wanted = min(max(answers[each.pool.name], each.least), each.most)
            if not each.wanted or each.wanted[-1][1] != wanted:
                each.wanted.append((clock.ns, wanted))
            self._bring(each, wanted)
        asked.idle = 0 if clock.goes_on else asked.idle + 1
        if self._cluster.busy and asked.idle < IDLE_TICKS:
            self._at(asked)

    def _loads(self, asked: Asked) -> dict[str, PoolLoad]:
        loads = {pool.name: self._load(pool, asked) for pool in self._cluster.fleet.pools if pool.name in asked.counts}
        if "pools" not in asked.scaler.needs:
            return loads
        return {
            name: load._replace(others={other: found for other, found in loads.items() if other != name})
            for name, load in loads.items()
        }

    def _load(self, pool: Pool, asked: Asked) -> PoolLoad:
        now, replicas = self._cluster.clock.ns, self._cluster.replicas
        ready = [i for i in self._in(pool, "ready") if replicas[i].up]
        counts = asked.counts[pool.name]
        return PoolLoad(
            now,
            {i: self._report(pool, i) for i in ready},
            len(self._starting(pool)) + self._promised(pool),
            len(self._in(pool, "draining")),
            self._cluster.held_for(pool),
            counts.arrived,
            counts.prompt_tokens,
            counts.finished,
            counts.output_tokens,
            *counts.latencies(),
        )

    def _report(self, pool: Pool, index: int) -> Report:
        """Return the metrics of a replica, which has ranks from this index on."""
        ranks = self._cluster.replicas[index : index + pool.ranks]
        waiting, running = sum(r.num_waiting for r in ranks), sum(r.num_running for r in ranks)
        return Report(waiting, running, sum(r.kv_usage for r in ranks) / pool.ranks, self._cluster.clock.ns)

    def _in(self, pool: Pool, *states: ReplicaState) -> list[int]:
        """Return the indices of a pool's replicas in one of these states, ascending; of data-parallel ranks, those of
        the first ones."""
        fleet = self._cluster.fleet
        own = [r.index for r in fleet.replicas if fleet.pool_of[r.index] is pool]
        return [i for i in own[:: pool.ranks] if fleet.replicas[i].state in states]

    def _starting(self, pool: Pool) -> list[int]:
        """Return the replicas of a pool that start, without those that start in place of one that is still there."""
        successors = {new for _, new in self._cluster.replacing(pool)}
        return [index for index in self._in(pool, "starting") if index not in successors]

    def _promised(self, pool: Pool) -> int:
        """Return how many replicas of a pool are yet to start in place of others, which drain."""
        return sum(new < 0 for _, new in self._cluster.replacing(pool))

    def _bring(self, each: Scaled, wanted: int) -> None:
        """Start or drain replicas until the wanted number is up or starting; failed replicas count, because they come
        back."""
        cluster = self._cluster
        starting = self._starting(each.pool)
        there = self._in(each.pool, "ready", "failed")
        spare = len(starting) + len(there) + self._promised(each.pool) - wanted
        for _ in range(-spare):
            turnover.begin(cluster, each.pool, each.start_ns)
        for _ in range(min(spare, len(starting) + len(there))):
            turnover.drain(cluster, (starting or there).pop())
