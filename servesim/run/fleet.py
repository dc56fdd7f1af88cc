"""When replicas were up, and the figures of replicas and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.engine.cluster import Cluster
from servesim.metrics.replicas import ReplicaTotals, Up, of_pools
from servesim.metrics.requests import SECOND, Requests
from servesim.metrics.summary import Deployment
from servesim.run.setup import Setup


class FleetFigures:
    """Figures of the replicas of a run. `cluster`: what served it; None where that were several processes."""

    def __init__(self, setup: Setup, cluster: Cluster | None, requests: Requests) -> None:
        self._duration_ns = requests.duration_ns
        since = self._first_ns = setup.facts.first_ns
        until = since + requests.duration_ns
        pools = [pool.pool for pool in setup.pools]
        if cluster is None:
            self._ups = [Up(i, since, until) for i, pool in enumerate(pools) for _ in pool.cores]
        else:
            self._ups = [
                Up(pools.index(pool), *_clipped(span, since, until))
                for pool, span in zip(cluster.fleet.pool_of, cluster.fleet.spans, strict=True)
            ]
        self._history = cluster.fleet.history if cluster is not None else []
        self.deployments: list[Deployment] = []
        """Of each pool, with the time that its replicas were up where they came and went."""
        for i, pool in enumerate(setup.pools):
            deployment = pool.deployment
            if cluster is not None and cluster.fleet.changed:
                deployment = replace(deployment, up_ns=sum(up.ns for up in self._ups if up.pool == i))
            self.deployments.append(deployment)
        self._pools = [(pool.name, one) for pool, one in zip(setup.pools, self.deployments, strict=True)]

    def figures(self, totals: ReplicaTotals) -> dict[str, Any]:
        """Return the figures of each replica and of each pool."""
        replicas = totals.each(self._ups, self._pools, self._first_ns)
        if self._history:
            for one, states in zip(replicas, self._states(), strict=True):
                one["states"] = states
        return {"replicas": replicas, "pools": of_pools(replicas, self._pools, self._duration_ns)}

    def _states(self) -> list[list[list[Any]]]:
        """Return [second, state] of each change of each replica."""
        found: list[list[list[Any]]] = [[] for _ in self._ups]
        for ns, index, state in self._history:
            known = found[index]
            if not known and state != "starting":
                known.append([(self._ups[index].since_ns - self._first_ns) / SECOND, "ready"])
            known.append([(ns - self._first_ns) / SECOND, state])
        for up, known in zip(self._ups, found, strict=True):
            if not known:
                known.append([(up.since_ns - self._first_ns) / SECOND, "ready"])
        return found


def _clipped(span: tuple[int, int | None], since: int, until: int) -> tuple[int, int]:
    """The part of a replica's time that lies within the run; (first, end), the end None while it is up."""
    first, end = span
    first = min(max(first, since), until)
    return first, until if end is None else max(min(end, until), first)
