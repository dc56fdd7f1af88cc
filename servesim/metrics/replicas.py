"""Figures of each replica and each pool: load, prefix cache, queue, uptime, and balance of the load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.figures import Figure, Group, Summary
from servesim.contracts.figures import Rows as TableRows
from servesim.metrics.measured import Deployment
from servesim.metrics.requests import MS, SECOND, RequestColumns, per
from servesim.metrics.words import number, percent
from servesim.records.columns import STEP_COLUMNS, Rows
from servesim.schemas import ANY, COUNT, NUMBER, TEXT, a_list, a_map

_STEP = {name: i for i, name in enumerate(STEP_COLUMNS)}
SUMS = (
    "steps", "gpu_ns", "kv_used_ns", "kv_peak", "requests", "completed", "prompt_tokens", "hit_tokens", "output_tokens",
    "queued_ns", "scheduled",
)  # fmt: skip


@dataclass(frozen=True)
class Up:
    """Uptime of a replica: from when it begins to start until it is gone."""

    pool: int
    """Index of its pool."""
    since_ns: int
    until_ns: int

    @property
    def ns(self) -> int:
        """Duration."""
        return self.until_ns - self.since_ns


class ReplicaTotals:
    """Per-replica sums over steps and requests, added chunk by chunk."""

    def __init__(self) -> None:
        self._sums = {name: np.zeros(0) for name in SUMS}

    def _grow(self, replicas: NDArray[np.int64]) -> None:
        count = int(replicas.max(initial=-1)) + 1
        have = len(self._sums["steps"])
        if count > have:
            self._sums = {name: np.append(sums, np.zeros(count - have)) for name, sums in self._sums.items()}

    def add_steps(self, rows: Rows) -> None:
        """Add a chunk of the step table."""
        replica = rows[:, _STEP["replica"]]
        self._grow(replica)
        for name, column in (("steps", "k"), ("gpu_ns", "gpu_ns"), ("kv_used_ns", "kv_used_ns")):
            np.add.at(self._sums[name], replica, rows[:, _STEP[column]])
        np.maximum.at(self._sums["kv_peak"], replica, rows[:, _STEP["kv_peak"]])

    def add_requests(self, columns: RequestColumns) -> None:
        """Add records of requests, except those that were never sent to a replica."""
        table = columns.table
        sent = table["replica"] >= 0
        replica = table["replica"][sent]
        scheduled = table["scheduled_ns"][sent] >= 0
        queued = np.where(scheduled, table["scheduled_ns"][sent] - table["arrival_ns"][sent], 0)
        values = {
            "completed": columns.done[sent],
            "prompt_tokens": np.where(scheduled, table["prompt_len"][sent], 0),
            "hit_tokens": table["hit_tokens"][sent],
            "output_tokens": np.where(columns.done[sent], table["output_len"][sent], 0),
            "queued_ns": queued,
            "scheduled": scheduled,
        }
        self.add_served(replica, values)

    def add_served(self, replica: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
        """Add the work that replicas served; `replica` and each of `values` (SUMS except `requests`) have one entry per
        request."""
        self._grow(replica)
        np.add.at(self._sums["requests"], replica, 1)
        for name, value in values.items():
            np.add.at(self._sums[name], replica, value)

    def sum_of(self, name: str, replicas: Iterable[int]) -> float:
        """Return one of SUMS, added up over these replicas."""
        sums = self._sums[name]
        return float(sum(sums[index] for index in replicas if index < len(sums)))

    def each(
        self,
        ups: Sequence[Up],
        pools: Sequence[tuple[str, Deployment]],
        first_ns: int,
        states: Sequence[list[list[Any]] | None],
    ) -> list[dict[str, Any]]:
        """Return the figures of each replica, by index. `ups`: uptime of each replica; `pools`: names and deployments;
        `first_ns`: start of the run, from which seconds are counted; `states`: state changes of each replica as
        [second of the trace, new state]."""
        have = len(self._sums["steps"])
        found = []
        for index, up in enumerate(ups):
            sums = {name: float(sums[index]) if index < have else 0.0 for name, sums in self._sums.items()}
            found.append(REPLICAS.values(One(index, *pools[up.pool], up, first_ns, sums, states[index])))
        return found


class One(NamedTuple):
    """Data of a replica from which its figures are computed."""

    number: int
    pool: str
    deployment: Deployment
    up: Up
    first_ns: int
    sums: Mapping[str, float]
    states: list[list[Any]] | None

    def used(self, name: str) -> float | None:
        """Return a sum over steps as a share of the replica's memory times its uptime."""
        return per(self.sums[name], self.up.ns * self.deployment.capacity_tokens)


REPLICAS = Group(
    "replicas",
    "replicas",
    (
        Figure("replica", "index of the replica", lambda one: one.number, schema=COUNT),
        Figure("pool", "name of the replica's pool", lambda one: one.pool, schema=TEXT),
        Figure("up_from_s", "time at which the replica began starting up, relative to the first arrival",
               lambda one: (one.up.since_ns - one.first_ns) / SECOND, "s", NUMBER),
        Figure("up_s", "uptime of the replica, including its startup time", lambda one: one.up.ns / SECOND, "s",
        NUMBER), Figure("requests", "number of requests that the replica served", lambda one:
        int(one.sums["requests"]), schema=COUNT), Figure("output_tokens", "output tokens of its completed requests",
               lambda one: int(one.sums["output_tokens"]), schema=COUNT),
        Figure("busy_share", "time that the replica's GPUs spent computing, divided by the replica's uptime",
               lambda one: per(one.sums["gpu_ns"], one.up.ns * one.deployment.pp), "share"),
        Figure("queue_ms", "mean time until the replica's requests were first scheduled",
               lambda one: per(one.sums["queued_ns"] / MS, one.sums["scheduled"]), "ms"),
        Figure("hit_rate", "share of prompt tokens found in the replica's prefix cache", lambda one:
        per(one.sums["hit_tokens"],
               one.sums["prompt_tokens"]) if one.deployment.prefix_caching else None, "share"),
        Figure("kv_used_share", "mean share of the replica's KV memory that running requests used",
               lambda one: one.used("kv_used_ns"), "share"),
        Figure("kv_peak_share", "largest share of the replica's KV memory allocated at any time",
               lambda one: per(one.sums["kv_peak"], one.deployment.capacity_tokens), "share"),
        Figure("states", "time in seconds, by the clock of the trace and of `cluster.failures`, and new state for each "
               "state change, if replicas start and stop",
               lambda one: one.states, schema=a_list(a_list(ANY)), optional=True),
    ),
    doc="Figures for each replica, in runs with several replicas.",
    rows=(),
    many=a_list,
)  # fmt: skip


class Whole(NamedTuple):
    """Data of a pool from which its figures are computed."""

    deployment: Deployment
    own: Sequence[Mapping[str, Any]]
    """Figures of its replicas."""
    duration_ns: int

    def sum(self, key: str) -> Any:
        """Return the sum of a figure over its replicas."""
        return sum(one[key] for one in self.own)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the pool."""
        hours: float = self.sum("up_s") * self.deployment.tp * self.deployment.pp / 3600
        return hours


def _mean_of(key: str, doc: str, unit: str = "share") -> Figure:
    return Figure(key, doc, lambda pool: _mean(pool.own, key), unit)


def _pool_rows(summary: Summary) -> TableRows:
    """Return a row for each pool, if the scenario names its pools."""
    if not summary["scenario"].get("pools"):
        return []
    return [
        (
            f"pool {name}",
            f"{pool['requests']:,} requests, {number(pool['replicas_mean'])} replicas up on average, busy "
            f"{percent(pool['busy_share'])}, imbalance {number(pool['imbalance'])}, queue "
            f"{number(pool['queue_ms'])} ms, {percent(pool['hit_rate'])} prefix hits, ${number(pool['usd'])}",
        )
        for name, pool in summary["pools"].items()
    ]


POOLS = Group(
    "pools",
    "pools",
    (
        Figure("model", "model of the pool", lambda pool: pool.deployment.model.name, schema=TEXT),
        Figure("gpu", "GPU type of the pool", lambda pool: pool.deployment.gpu.name, schema=TEXT),
        Figure("replicas", "total number of replicas that the pool had", lambda pool: len(pool.own), schema=COUNT),
        Figure("replicas_mean", "mean number of replicas that were up",
               lambda pool: per(pool.sum("up_s"), pool.duration_ns / SECOND)),
        Figure("requests", "number of requests that the pool served", lambda pool: pool.sum("requests"), schema=COUNT),
        Figure("output_tokens", "output tokens of its completed requests",
               lambda pool: pool.sum("output_tokens"), schema=COUNT),
        _mean_of("busy_share", "share of time during which the pool's GPUs were busy, averaged over its replicas and "
            "weighted by uptime"),
        _mean_of("queue_ms", "mean time until the pool's requests were first scheduled", "ms"),
        _mean_of("hit_rate", "share of prompt tokens found in prefix caches, averaged over requests"),
        _mean_of("kv_used_share", (
            "share of KV memory that running requests used, averaged over the pool's replicas and weighted by uptime"
        )),
        Figure("imbalance", "busy share of the busiest replica divided by the mean busy share. 1 means an even load",
               lambda pool: imbalance([one["busy_share"] for one in pool.own])),
        Figure("gpu_hours", "total uptime of the pool's GPUs", lambda pool: pool.gpu_hours, "h", NUMBER),
        Figure("usd", "price of the GPU-hours",
               lambda pool: pool.gpu_hours * pool.deployment.usd_per_gpu_hour, "$", NUMBER),
    ),
    doc="Figures for each pool, by name, in runs with several replicas.",
    rows=_pool_rows,
    many=a_map,
)  # fmt: skip


def of_pools(
    replicas: Sequence[Mapping[str, Any]], pools: Sequence[tuple[str, Deployment]], duration_ns: int
) -> dict[str, Any]:
    """Return the figures of each pool. `replicas`: the figures of each replica."""
    return {
        name: POOLS.values(Whole(deployment, [one for one in replicas if one["pool"] == name], duration_ns))
        for name, deployment in pools
    }


def imbalance(shares: Sequence[float | None]) -> float | None:
    """Return the largest share divided by the mean share (1: perfectly even), or None if there are no shares."""
    known = [share or 0.0 for share in shares]
    return per(max(known, default=0.0) * len(known), sum(known))


def _mean(replicas: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean of a figure over replicas, weighted by number of requests for figures of requests, otherwise by
    uptime."""
    weight = "requests" if key in ("queue_ms", "hit_rate") else "up_s"
    known = [one for one in replicas if one[key] is not None]
    return per(sum(one[key] * one[weight] for one in known), sum(one[weight] for one in known))
