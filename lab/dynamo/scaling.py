"""Workers that come and go as in Dynamo's simulator (ai-dynamo-runtime 1.6.1), and its round robin over them.

A target counts workers that are active or starting. Above it those that are starting are given up first, then active
ones are drained, the highest number first; below it new ones start, under numbers not used before, also while
others drain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, Router


class Change(NamedTuple):
    """A worker's new state: "starting", "active", "draining" (takes no more requests) or "removed"."""

    ns: int
    worker: int
    state: str


@dataclass
class Workers:
    """Which workers there are. Times must not go back."""

    num_workers: int
    startup_ns: int
    """From the decision to the first request it may get."""
    active: list[int] = field(init=False)
    starting: list[tuple[int, int]] = field(init=False, default_factory=list)
    """(ready at ns, worker)."""
    changes: list[Change] = field(init=False, default_factory=list)
    """All there were, but for the end of draining."""

    def __post_init__(self) -> None:
        self.active = list(range(self.num_workers))
        self._next = self.num_workers

    def advance(self, ns: int) -> None:
        """Let those be active whose start is over by `ns`."""
        while self.starting and self.starting[0][0] <= ns:
            ready_ns, worker = self.starting.pop(0)
            self.active.append(worker)
            self.changes.append(Change(ready_ns, worker, "active"))

    def scale(self, ns: int, target: int) -> None:
        """Start, give up or drain workers until `target` are active or starting."""
        self.advance(ns)
        for _ in range(target - len(self.active) - len(self.starting)):
            self.starting.append((ns + self.startup_ns, self._next))
            self.changes.append(Change(ns, self._next, "starting"))
            self._next += 1
        while len(self.active) + len(self.starting) > target:
            worker, state = (self.starting.pop()[1], "removed") if self.starting else (self.active.pop(), "draining")
            self.changes.append(Change(ns, worker, state))


class ScaledRoundRobin(Router):
    """Each active worker in turn, by number. Its place is a position, not a worker: one behind that of the last choice,
    modulo how many are active by then. At one instant workers are ready first, requests arrive next, targets come last.

    `targets`: (ns, workers), ascending. Replicas of the cluster from `first` on are all workers that ever start:
    `most_workers`.
    """

    name = "scaled-round-robin"
    blind = True

    def __init__(self, targets: Sequence[tuple[int, int]], num_workers: int, startup_ns: int, first: int = 0) -> None:
        self.workers = Workers(num_workers, startup_ns)
        self.first = first
        super().__init__(None, most_workers(targets, num_workers, startup_ns))
        self._targets = list(targets)
        self._position = 0

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        self.advance(self.clock())
        active = self.workers.active
        position = self._position % len(active)
        self._position = position + 1
        return self.first + active[position]

    def advance(self, ns: int) -> None:
        """Let happen what comes before the requests of an instant."""
        while self._targets and self._targets[0][0] < ns:
            self.workers.scale(*self._targets.pop(0))
        self.workers.advance(ns)


def most_workers(targets: Sequence[tuple[int, int]], num_workers: int, startup_ns: int) -> int:
    """Return how many workers there ever are."""
    workers = Workers(num_workers, startup_ns)
    for ns, target in targets:
        workers.scale(ns, target)
    return num_workers + sum(change.state == "starting" for change in workers.changes)
