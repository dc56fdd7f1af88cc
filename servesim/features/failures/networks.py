"""Periods in which replicas send and receive more slowly over the network."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from simpy.events import Event

from servesim.contracts.part import ClusterView
from servesim.engine.clock import REPORT
from servesim.errors import UserError
from servesim.features.failures.nodes import Nodes


class SlowNet(NamedTuple):
    """A period in which the links of some replicas have a fraction of their bandwidth: those of a replica, a node or a
    pool (its number in the order of the fleet's), or all if none is given (-1)."""

    at_ns: int
    until_ns: int
    factor: float
    replica: int = -1
    node: int = -1
    pool: int = -1


class Networks:
    """The slow periods of a cluster. Several at once do not add up: a link is as slow as its slowest part."""

    def __init__(self, cluster: ClusterView, nodes: Nodes) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._now: list[SlowNet] = []
        self._told: dict[int, float] = {}

    def expect(self, slow: SlowNet) -> None:
        """Schedule a slow period. Raise UserError if nothing in this run goes over a network."""
        if not self._cluster.has_network:
            raise UserError(
                "cluster.failures: slow_net has no effect: only KV between prefill and decode replicas, and to and "
                "from a remote store (offload), goes over a network"
            )
        clock = self._cluster.clock
        clock.at(slow.at_ns, REPORT, partial(self._begin, slow))
        clock.at(slow.until_ns, REPORT, partial(self._end, slow))

    def looked_over(self) -> None:
        """Notify all parts of the replicas whose links are slower or faster than before."""
        if not self._now and not self._told:
            return
        factors = dict.fromkeys(range(len(self._cluster.replicas)), 1.0)
        for slow in self._now:
            for index in self._touched(slow):
                factors[index] = max(factors[index], slow.factor)
        for index, factor in factors.items():
            if factor != self._told.get(index, 1.0):
                self._told[index] = factor
                self._cluster.network_changed(index, factor)

    def _touched(self, slow: SlowNet) -> list[int]:
        fleet = self._cluster.fleet
        if slow.node >= 0:
            return self._nodes.on(slow.node, fleet)
        if slow.pool >= 0:
            return [i for i, pool in enumerate(fleet.pool_of) if pool is fleet.pools[slow.pool]]
        return list(range(len(fleet.replicas))) if slow.replica < 0 else [slow.replica]

    def _begin(self, slow: SlowNet, event: Event) -> None:
        if slow.replica >= len(self._cluster.replicas):
            raise UserError(f"cluster.failures: there is no replica {slow.replica} at {slow.at_ns / 1e9:g} s")
        self._now.append(slow)
        self.looked_over()

    def _end(self, slow: SlowNet, event: Event) -> None:
        self._now.remove(slow)
        self.looked_over()
