"""The summary of a run: figures of its records, sections and notes of features, scenario and provenance."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from servesim.contracts.feature import of_user
from servesim.contracts.figures import Group
from servesim.contracts.part import Finished, Part
from servesim.contracts.warn import split_notes
from servesim.cost.falling import falling
from servesim.engine.cluster import Cluster
from servesim.metrics.figures import plain_sections, summarize
from servesim.metrics.measured import Deployment, Measured
from servesim.metrics.replicas import ReplicaTotals, Up, of_pools
from servesim.metrics.requests import SECOND, Requests
from servesim.plugins.user_policies import blaming, is_own
from servesim.run.notes import after_run, on_costs
from servesim.run.pools import of_each
from servesim.run.prices import paid, reserved_of
from servesim.run.records import Records
from servesim.run.setup import Setup

USUAL = ("p10", "p25", "p50", "p75", "p90")
"""Quantiles of the number of tokens in a step at which costs are compared with those of larger steps."""


def summary_of(
    setup: Setup, records: Records, cluster: Cluster | None, finished: Finished, conclude: bool
) -> dict[str, Any]:
    """Return the summary of a run. `cluster`: the cluster that served it, or None if several processes did; `conclude`:
    add the parts derived from the summary itself."""
    scenario, requests, totals = setup.scenario, records.requests, records.totals
    fleet = FleetFigures(setup, cluster, requests)
    tables = setup.cost.tables
    measured = Measured(
        requests,
        records.itl,
        totals,
        fleet.deployments,
        scenario.slo,
        records.retries,
        records.workload.unsent,
        [core.spec_stats for core in setup.cores],
        tables.relative_error if tables is not None else None,
    )
    figures = summarize(measured)
    if records.replicas is not None:
        figures |= fleet.figures(records.replicas)
    kinds = [type(part) for part in setup.parts]
    own = [group for feature in of_user(scenario.features) for group in feature.groups()]
    with blaming(kinds):
        for part in setup.parts:
            figures |= _checked(part, part.figures(finished), own)
    steps = figures["engine"]["tokens_per_step"] or {}
    usual = [int(steps[quantile]) for quantile in USUAL if steps.get(quantile)]
    reached = [
        [
            *on_costs(pool.cost, totals.decode_reach),
            *(f"kernel tables: {fall}" for fall in falling(pool.cost, usual, pool.scenario.dp)),
        ]
        for pool in setup.pools
    ]
    with blaming(kinds):
        said = [note for part in setup.parts for note in part.notes(figures)]
    notes = [
        *setup.notes,
        *said,
        *after_run(scenario, setup.facts, setup.pools[0].server.defaults, figures, setup.front),
        *of_each([pool.name for pool in setup.pools], reached),
        *records.notes,
    ]
    provenance = {**setup.provenance, "versions": versions()}
    summary = {**figures, **split_notes(notes), "scenario": scenario.model_dump(mode="json"), "provenance": provenance}
    with blaming(kinds):
        for part in setup.parts if conclude else ():
            summary |= _checked(part, part.conclusions(summary, finished), own)
    return summary


def _checked(part: Part, sections: dict[str, Any], own: Sequence[Group]) -> dict[str, Any]:
    """Return the sections of a part; raise PolicyError for sections of a user's part that do not match its groups
    (`own`)."""
    return plain_sections(own, sections) if is_own(type(part)) else sections


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    from importlib.metadata import version

    names = ("servesim", "simpy", "numpy", "pyarrow")
    return ("python", platform.python_version()), *((name, version(name)) for name in names)


def versions() -> dict[str, str]:
    """Return the versions that determine the bytes of a result."""
    return dict(_versions())


class FleetFigures:
    """Figures of the replicas of a run. `cluster`: the cluster that served it, or None if several processes did."""

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
        """Deployment of each pool, with the uptime of its replicas if replicas came and went."""
        for i, pool in enumerate(setup.pools):
            deployment = pool.deployment
            if cluster is not None and cluster.fleet.changed:
                deployment = replace(deployment, up_ns=sum(up.ns for up in self._ups if up.pool == i))
            self.deployments.append(deployment)
        self._pay(setup, since, until)
        self._pools = [(pool.name, one) for pool, one in zip(setup.pools, self.deployments, strict=True)]

    def _pay(self, setup: Setup, since: int, until: int) -> None:
        """Set the mean price of the GPU-hours of pools that share reserved GPUs, if replicas came and went."""
        for gpu, price in setup.scenario.price.items():
            reserved, same = reserved_of(price), [i for i, d in enumerate(self.deployments) if d.gpu.name == gpu]
            if reserved is None or all(self.deployments[i].up_ns is None for i in same):
                continue
            each = {i: self.deployments[i].tp * self.deployments[i].pp for i in same}
            ups = [(up.since_ns, up.until_ns, each[up.pool]) for up in self._ups if up.pool in each]
            hours = sum((end - start) * gpus for start, end, gpus in ups)
            usd = paid(reserved, ups, since, until) / hours if hours else 0.0
            for i in same:
                self.deployments[i] = replace(self.deployments[i], usd_per_gpu_hour=usd)

    def figures(self, totals: ReplicaTotals) -> dict[str, Any]:
        """Return the figures of each replica and of each pool."""
        states = self._states() if self._history else [None] * len(self._ups)
        replicas = totals.each(self._ups, self._pools, self._first_ns, states)
        return {"replicas": replicas, "pools": of_pools(replicas, self._pools, self._duration_ns)}

    def _states(self) -> list[list[list[Any]]]:
        """Return the state changes of each replica as [second, state], by the clock of the trace."""
        found: list[list[list[Any]]] = [[] for _ in self._ups]
        for ns, index, state in self._history:
            known = found[index]
            if not known and state != "starting":
                known.append([self._ups[index].since_ns / SECOND, "ready"])
            known.append([ns / SECOND, state])
        for up, known in zip(self._ups, found, strict=True):
            if not known:
                known.append([up.since_ns / SECOND, "ready"])
        return found


def _clipped(span: tuple[int, int | None], since: int, until: int) -> tuple[int, int]:
    """Return the part (first, end) of a replica's uptime that lies within the run; an end of None means it is still
    up."""
    first, end = span
    first = min(max(first, since), until)
    return first, until if end is None else max(min(end, until), first)
