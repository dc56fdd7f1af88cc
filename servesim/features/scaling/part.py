"""Replicas that come and go: the input of autoscalers, and the effect of their output.

When scaling up, a new replica gets the next index, is ready after its start-up time and then takes requests
immediately. When scaling down, starting replicas are removed first, then ready ones drain, the highest index first in
each case: they get no new requests and are gone when empty. A draining replica is not reused: a new one starts (as in
Dynamo's replay).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from simpy.events import Event

from servesim.contracts.part import ClusterView, Part
from servesim.contracts.request import Request, State
from servesim.contracts.router import ReplicaState, Report
from servesim.contracts.scaler import PoolLoad, Scaler
from servesim.engine import turnover
from servesim.engine.clock import REPORT
from servesim.engine.pool import Pool

IDLE_TICKS = 100_000
"""Number of consecutive queries after which waiting requests are given up if nothing else happens."""


@dataclass
class Scaled:
    """A pool with an autoscaler, and its events since the last query."""

    pool: Pool
    scaler: Scaler
    start_ns: int
    """Time that a replica takes to start."""
    least: int
    most: int
    arrived: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    output_tokens: int = 0
    wanted: list[tuple[int, int]] = field(default_factory=list)
    """(ns, replicas wanted) at each change."""


class Scaling(Part):
    """Part that queries the autoscalers of a cluster's pools and applies their decisions."""

    def __init__(self, scaled: list[Scaled]) -> None:
        self._of = {id(each.pool): each for each in scaled}
        self.scaled = scaled
        self._idle = dict.fromkeys(range(len(scaled)), 0)

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def start(self) -> None:
        for number, each in enumerate(self.scaled):
            self._at(number, each)

    def _at(self, number: int, each: Scaled) -> None:
        clock = self._cluster.clock
        clock.background += 1
        clock.at(clock.ns + round(each.scaler.every_s * 1e9), REPORT, partial(self._ask, number, each))

    def sent(self, request: Request, output_len: int, index: int) -> None:
        each = self._of.get(id(self._cluster.fleet.pool_of[index]))
        if each is not None:
            each.arrived += 1
            each.prompt_tokens += request.prompt_len

    def left(self, request: Request) -> None:
        index, cluster = request.replica, self._cluster
        if index < 0:
            return
        each = self._of.get(id(cluster.fleet.pool_of[index]))
        if each is not None and request.state is State.FINISHED:
            each.finished += 1
            each.output_tokens += request.num_tokens - request.prompt_len
        turnover.left_draining(cluster, index)

    def _ask(self, number: int, each: Scaled, event: Event) -> None:
        clock = self._cluster.clock
        clock.background -= 1
        wanted = min(max(each.scaler.wanted(self._load(each)), each.least), each.most)
        each.arrived = each.prompt_tokens = each.finished = each.output_tokens = 0
        if not each.wanted or each.wanted[-1][1] != wanted:
            each.wanted.append((clock.ns, wanted))
        self._bring(each, wanted)
        self._idle[number] = 0 if clock.goes_on else self._idle[number] + 1
        if self._cluster.busy and self._idle[number] < IDLE_TICKS:
            self._at(number, each)

    def _load(self, each: Scaled) -> PoolLoad:
        now, replicas = self._cluster.clock.ns, self._cluster.replicas
        ready = {i: replicas[i] for i in self._in(each.pool, "ready") if replicas[i].up}
        return PoolLoad(
            now,
            {i: Report(r.num_waiting, r.num_running, r.kv_usage, now) for i, r in ready.items()},
            len(self._in(each.pool, "starting")),
            len(self._in(each.pool, "draining")),
            self._cluster.waiting.num_for(each.pool.serves),
            each.arrived,
            each.prompt_tokens,
            each.finished,
            each.output_tokens,
        )

    def _in(self, pool: Pool, *states: ReplicaState) -> list[int]:
        """Return the indices of a pool's replicas in one of these states, ascending."""
        fleet = self._cluster.fleet
        return [r.index for r in fleet.replicas if r.state in states and fleet.pool_of[r.index] is pool]

    def _bring(self, each: Scaled, wanted: int) -> None:
        """Start or drain replicas until the wanted number is up or starting; failed replicas count, because they come
        back."""
        cluster = self._cluster
        starting = self._in(each.pool, "starting")
        there = self._in(each.pool, "ready", "failed")
        for _ in range(wanted - len(starting) - len(there)):
            turnover.begin(cluster, each.pool, each.start_ns)
        spare = len(starting) + len(there) - wanted
        for _ in range(max(spare, 0)):
            turnover.drain(cluster, (starting or there).pop())
