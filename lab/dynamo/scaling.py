"""Workers that start and stop as in Dynamo's simulator (ai-dynamo-runtime 1.6.1), and its round robin over them.

A target counts workers that are active or starting. If there are more, starting workers are canceled first, and then
active ones are drained, the highest number first. If there are fewer, new workers start under unused numbers, even
while others drain.
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
    """Current set of workers. Times must not decrease."""

    num_workers: int
    startup_ns: int
    """Time from the decision to the first request that the worker may receive."""
    active: list[int] = field(init=False)
    starting: list[tuple[int, int]] = field(init=False, default_factory=list)
    """Tuples (ready at ns, worker)."""
    changes: list[Change] = field(init=False, default_factory=list)
    """All changes so far, except for the end of draining."""

    def __post_init__(self) -> None:
        self.active = list(range(self.num_workers))
        self._next = self.num_workers

    def advance(self, ns: int) -> None:
        """Activate the workers that have finished starting by `ns`."""
        while self.starting and self.starting[0][0] <= ns:
            ready_ns, worker = self.starting.pop(0)
            self.active.append(worker)
            self.changes.append(Change(ready_ns, worker, "active"))

    def scale(self, ns: int, target: int) -> None:
        """Start, cancel or drain workers until `target` are active or starting."""
        self.advance(ns)
        for _ in range(target - len(self.active) - len(self.starting)):
            self.starting.append((ns + self.startup_ns, self._next))
            self.changes.append(Change(ns, self._next, "starting"))
            self._next += 1
        while len(self.active) + len(self.starting) > target:
            worker, state = (self.starting.pop()[1], "removed") if self.starting else (self.active.pop(), "draining")
            self.changes.append(Change(ns, worker, state))


class ScaledRoundRobin(Router):
    """Round robin over the active workers, by number. Its state is a position, not a worker: one past the position of
    the last choice, modulo the current number of active workers. At any instant, workers become ready first, then
    requests arrive, then targets change.

    `targets` are (ns, workers), ascending. The cluster's replicas from `first` on are all workers that ever start:
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
        """Apply the events that precede the requests of an instant."""
        while self._targets and self._targets[0][0] < ns:
            self.workers.scale(*self._targets.pop(0))
        self.workers.advance(ns)


def most_workers(targets: Sequence[tuple[int, int]], num_workers: int, startup_ns: int) -> int:
    """Return the total number of workers that ever exist."""
    workers = Workers(num_workers, startup_ns)
    for ns, target in targets:
        workers.scale(ns, target)
    return num_workers + sum(change.state == "starting" for change in workers.changes)
