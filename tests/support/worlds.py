"""Small worlds whose replicas can be watched, and everything their memory holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from servesim.checking.world import ToyCost, toy_trace
from servesim.checking.world import World as LibraryWorld
from servesim.contracts.part import Part
from servesim.engine.cluster import Cluster
from servesim.engine.core import EngineCore
from servesim.engine.fast.core import FastCore
from servesim.engine.pool import Pool
from servesim.records.step import Step

__all__ = ["ToyCost", "Watched", "World", "memory_state", "toy_trace", "watch"]


class Watched(EngineCore):
    """Says when it has planned."""

    on_planned: Callable[[int], None] | None = None

    def plan(self, now: int) -> Step | None:
        step = super().plan(now)
        if self.on_planned is not None:
            self.on_planned(now)
        return step


class WatchedFast(FastCore):
    """Says when it has planned."""

    on_planned: Callable[[int], None] | None = None

    def plan(self, now: int) -> Step | None:
        step = super().plan(now)
        if self.on_planned is not None:
            self.on_planned(now)
        return step


@dataclass
class World(LibraryWorld):
    """A world of watched replicas, with shorthands for some features."""

    report_every: int = 0
    """ns between two reports of what the router sees; 0: it sees what is."""
    report_lag: int = 0
    failures: Any = None
    """What breaks: servesim.features.failures.happenings.Failures."""
    node_size: int = 8
    """Replicas of a node."""
    data_parallel: Any = None
    """How ranks step together: servesim.features.data_parallel.part.DataParallel."""

    core_classes = {"reference": Watched, "fast": WatchedFast}  # noqa: RUF012

    def handoff(self) -> Part | None:
        """How prompts get from one pool to another; none."""
        return None

    def parts(self, pools: list[Pool]) -> list[Part]:
        found = super().parts(pools)
        if (handoff := self.handoff()) is not None:
            found.append(handoff)
        if self.report_every:
            from servesim.features.view_lag.part import Reporting

            found.append(Reporting(self.report_every, self.report_lag))
        if self.failures is not None:
            from servesim.features.failures.nodes import Nodes
            from servesim.features.failures.part import Failing

            found.append(Failing(self.failures, Nodes(self.node_size, lambda pool: 1)))
        if self.data_parallel is not None:
            from servesim.features.data_parallel.part import Ranks

            found.append(Ranks([(pool, self.data_parallel) for pool in pools]))
        return found


Snapshot = tuple[Any, ...]


def memory_state(kv: Any) -> Snapshot:
    """Everything an allocator holds, in a form that two runs (and the time before and after) can be compared by."""
    state: list[Any] = [kv.usage(), kv.copied_tokens]
    if hasattr(kv, "free_order"):
        # cached blocks without their keys, which are numbers in order of first use
        cached = kv.cached() if hasattr(kv, "cached") else []
        state += [
            [(r.row, [list(t) if isinstance(t, list) else t for t in table]) for r, table in kv.tables.items()],
            kv.free_order(),
            sorted(cached),
        ]
    if hasattr(kv, "space"):
        state += [[(r.row, chunk) for r, chunk in kv.chunks.items()], sorted(kv.space.holes())]
    if hasattr(kv, "tree"):
        nodes = sorted(kv.tree.nodes(), key=lambda n: (n.last_access, n.created))
        state += [
            [(r.row, held.node.end, held.own) for r, held in kv._held.items()],
            sorted((r.row, end) for r, end in kv._prefilling.items()),
            [(n.start, n.end, n.locks, n.hits, n.priority) for n in nodes],
        ]
    return tuple(state)


def watch(cluster: Cluster) -> dict[tuple[int, int, int], Snapshot]:
    """Snapshots of everything a replica holds after each plan, by (replica, time, next step id)."""
    seen: dict[tuple[int, int, int], Snapshot] = {}

    def hook(index: int, core: Watched | WatchedFast) -> None:
        def planned(now: int) -> None:
            seen[index, now, core.next_step_id] = (
                memory_state(core.kv),
                [
                    (r.row, r.num_tokens, r.num_computed_tokens, r.num_output_placeholders)
                    for r in core.scheduler.running
                ],
                [r.row for r in core.scheduler.waiters()],
            )

        core.on_planned = planned

    for i, replica in enumerate(cluster.replicas):
        assert isinstance(replica.core, Watched | WatchedFast)
        hook(i, replica.core)
    return seen
