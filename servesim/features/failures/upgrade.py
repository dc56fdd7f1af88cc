"""Rolling upgrades: the replicas of a pool are replaced in turn, as Kubernetes does it.

The rule is that of a Deployment with strategy RollingUpdate (Kubernetes, pkg/controller/deployment/rolling.go).
Without surge (maxUnavailable is `batch`, maxSurge 0), up to `batch` replicas are away at once: each drains, and its
successor starts on the same GPUs when it is gone (the new pod is pending until then). With surge (maxSurge is `batch`,
maxUnavailable 0), successors start on spare GPUs, and a replica drains when its successor is ready, so that the number
of ready replicas never falls. In both cases the next replica has its turn when a successor is ready; those that drain
do not count. What is not ready is replaced first (cleanupUnhealthyReplicas), the rest in order of their indices. A
replica that still has requests when its grace period ends is killed (terminationGracePeriodSeconds, 30 s by default).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.part import ClusterView
from servesim.contracts.router import ReplicaState
from servesim.engine import turnover
from servesim.engine.clock import CHANGE
from servesim.engine.pool import Pool

STAYING = ("starting", "ready", "failed")
"""States of replicas that are or will be there."""


class Upgrade(NamedTuple):
    """A rolling upgrade. Pools are given by their numbers, in the order of the fleet's."""

    at_ns: int
    start_ns: int
    """Time that a new replica takes to start."""
    pool: int = 0
    into: int = 0
    """Pool of the new replicas."""
    batch: int = 1
    surge: bool = False
    grace_ns: int = 30_000_000_000


class Rollout:
    """An upgrade in progress. `drain` lets a replica drain; `kill` ends one that still drains, and returns the number
    of requests that it had."""

    def __init__(
        self, cluster: ClusterView, upgrade: Upgrade, drain: Callable[[int], None], kill: Callable[[int], int]
    ) -> None:
        self._cluster, self._upgrade, self._drain_it, self._kill = cluster, upgrade, drain, kill
        self._pool: Pool = cluster.fleet.pools[upgrade.pool]
        self._old: list[int] = []  # whose turn is to come
        self._going: set[int] = set()  # without surge: replicas whose successor has not begun to start
        self.begun_ns = cluster.clock.ns
        self.replaced: list[int] = []
        """Replicas that have drained or drain."""
        self.successors: list[int] = []
        self.lost = 0
        """Number of requests that were lost at the ends of grace periods."""
        self._coming: dict[int, int] = {}  # by successor that is not ready: the replica that is to drain then, or -1

    def begin(self) -> None:
        """Begin with the first replicas."""
        replicas, fleet = self._cluster.replicas, self._cluster.fleet
        self._old = [r.index for r in replicas if r.state in STAYING and fleet.pool_of[r.index] is self._pool]
        self._old.sort(key=lambda index: (replicas[index].state == "ready", index))
        for _ in range(self._upgrade.batch):
            self._next()

    def state_changed(self, index: int, state: ReplicaState) -> None:
        """Handle a change in a replica's state."""
        if index in self._going and state == "gone":
            self._later(partial(self._succeed, index))
        elif index in self._coming and state in ("ready", "gone"):
            self._later(partial(self._came, index, self._coming.pop(index), state))

    def pairs(self, pool: Pool) -> Iterator[tuple[int, int]]:
        """Yield the replicas of a pool that are being replaced, each with its successor, or with -1 if that is yet to
        start."""
        if pool is self._pool:
            yield from ((old, -1) for old in sorted(self._going))
            yield from ((old, new) for new, old in self._coming.items() if self._stays(old))

    def _later(self, call: Callable[[], None]) -> None:
        """Go on when all parts have been told what has just changed."""
        self._cluster.clock.at(self._cluster.clock.ns, CHANGE, lambda event: call())

    def _stays(self, index: int) -> bool:
        return index >= 0 and self._cluster.replicas[index].state in STAYING

    def _next(self) -> None:
        """Begin to replace the next replica that is still there, if any."""
        while self._old:
            index = self._old.pop(0)
            if self._stays(index):
                if self._upgrade.surge:
                    self._start(index)
                else:
                    self._going.add(index)
                    self._drain(index)
                return

    def _start(self, old: int) -> None:
        """Start a successor, which is to be waited for."""
        cluster, upgrade = self._cluster, self._upgrade
        index = turnover.begin(cluster, cluster.fleet.pools[upgrade.into], upgrade.start_ns)
        self.successors.append(index)
        self._coming[index] = old

    def _succeed(self, index: int) -> None:
        self._going.discard(index)
        self._start(-1)

    def _came(self, index: int, old: int, state: ReplicaState) -> None:
        """Handle a successor that is ready, or gone before it was."""
        if self._stays(old):
            if state == "ready":
                self._drain(old)
            else:
                self._old.append(old)
        self._next()

    def _drain(self, index: int) -> None:
        clock = self._cluster.clock
        self.replaced.append(index)
        self._drain_it(index)
        if self._cluster.replicas[index].state == "draining":
            clock.at(clock.ns + self._upgrade.grace_ns, CHANGE, partial(self._out_of_time, index))

    def _out_of_time(self, index: int, event: Event) -> None:
        turnover.end_if_empty(self._cluster, index)
        if self._cluster.replicas[index].state == "draining":
            self.lost += self._kill(index)
