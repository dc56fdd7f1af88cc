"""Nodes: which replicas share one, and so fail together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from servesim.engine.pool import Pool
from servesim.errors import UserError


class Stay(NamedTuple):
    """A replica that needs a place."""

    gpus: int
    since_ns: int = 0
    until_ns: int | None = None
    """Time at which it is gone; None while it is there."""


class Outage(NamedTuple):
    """A period in which nothing is placed on a node."""

    node: int
    since_ns: int
    until_ns: int | None
    """Its end; None if there is none."""


class Nodes:
    """Nodes with `size` GPUs each, as many as it takes. `gpus_of`: GPUs of a replica of a pool."""

    def __init__(self, size: int, gpus_of: Callable[[Pool], int]) -> None:
        self.size, self.gpus_of = size, gpus_of
        self.outages: list[Outage] = []

    def of(self, fleet: Any) -> list[range]:
        """Return the nodes of all replicas, with those that are gone."""
        stays = [Stay(self.gpus_of(pool), *span) for pool, span in zip(fleet.pool_of, fleet.spans, strict=True)]
        return placed(self.size, stays, self.outages)

    def on(self, node: int, fleet: Any) -> list[int]:
        """Return the replicas on a node now, ascending. Raise UserError if there has never been any."""
        there = self.of(fleet)
        if node >= number_of(there):
            raise UserError(f"cluster.failures: there is no node {node}; {number_of(there)} have been in use")
        return [i for i, nodes in enumerate(there) if node in nodes and fleet.spans[i][1] is None]


def placed(size: int, stays: Sequence[Stay], outages: Sequence[Outage] = ()) -> list[range]:
    """Return the nodes of each replica, given in the order in which they start. Each takes the first node with enough
    free GPUs; one that is larger than a node begins at an empty one and goes on to the next. What is gone makes room
    for what starts at that time or later; a node that is down takes nothing."""
    found: list[range] = []
    used: dict[int, int] = {}
    leaving: list[tuple[int, int]] = []  # (end, replica), the earliest first
    for index, stay in enumerate(stays):
        while leaving and leaving[0][0] <= stay.since_ns:
            _, gone = heappop(leaving)
            _take(used, found[gone], [-gpus for gpus in _shares(stays[gone].gpus, size)])
        down = {outage.node for outage in outages if _is_down(outage, stay.since_ns)}
        shares, first = _shares(stay.gpus, size), 0
        while any(first + i in down or used.get(first + i, 0) + gpus > size for i, gpus in enumerate(shares)):
            first += 1
        found.append(range(first, first + len(shares)))
        _take(used, found[index], shares)
        if stay.until_ns is not None:
            heappush(leaving, (stay.until_ns, index))
    return found


def number_of(places: Sequence[range]) -> int:
    """Return how many nodes are in use, given the nodes of each replica."""
    return max((nodes.stop for nodes in places), default=0)


def _take(used: dict[int, int], nodes: range, shares: Sequence[int]) -> None:
    for node, gpus in zip(nodes, shares, strict=True):
        used[node] = used.get(node, 0) + gpus


def _is_down(outage: Outage, ns: int) -> bool:
    return outage.since_ns <= ns and (outage.until_ns is None or ns < outage.until_ns)


def _shares(gpus: int, size: int) -> list[int]:
    """Return the GPUs of a replica on each of its nodes."""
    return [min(size, gpus - begun) for begun in range(0, gpus, size)]
