"""Figures of each replica and each pool: load, prefix cache, queue, time up, and how even the load was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.metrics.requests import MS, SECOND, RequestColumns, per
from servesim.metrics.summary import Deployment
from servesim.records.recorder import STEP_COLUMNS, Rows

_STEP = {name: i for i, name in enumerate(STEP_COLUMNS)}
SUMS = (
    "steps", "gpu_ns", "kv_used_ns", "kv_peak", "requests", "completed", "prompt_tokens", "hit_tokens", "output_tokens",
    "queued_ns", "scheduled",
)  # fmt: skip


@dataclass(frozen=True)
class Up:
    """When a replica was up: from the beginning of its start to its end."""

    pool: int
    """Index of its pool."""
    since_ns: int
    until_ns: int

    @property
    def ns(self) -> int:
        """How long."""
        return self.until_ns - self.since_ns


class ReplicaTotals:
    """Sums by replica over steps and requests, taken in chunk by chunk."""

    def __init__(self) -> None:
        self._sums = {name: np.zeros(0) for name in SUMS}

    def _grow(self, replicas: NDArray[np.int64]) -> None:
        count = int(replicas.max(initial=-1)) + 1
        have = len(self._sums["steps"])
        if count > have:
            self._sums = {name: np.append(sums, np.zeros(count - have)) for name, sums in self._sums.items()}

    def add_steps(self, rows: Rows) -> None:
        """Take in a chunk of the step table."""
        replica = rows[:, _STEP["replica"]]
        self._grow(replica)
        for name, column in (("steps", "k"), ("gpu_ns", "gpu_ns"), ("kv_used_ns", "kv_used_ns")):
            np.add.at(self._sums[name], replica, rows[:, _STEP[column]])
        np.maximum.at(self._sums["kv_peak"], replica, rows[:, _STEP["kv_peak"]])

    def add_requests(self, columns: RequestColumns) -> None:
        """Take in records of requests; those that were with no replica are left out."""
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
        """Take in what replicas served: `replica` and each of `values` (SUMS but `requests`): one entry each."""
        self._grow(replica)
        np.add.at(self._sums["requests"], replica, 1)
        for name, value in values.items():
            np.add.at(self._sums[name], replica, value)

    def each(self, ups: Sequence[Up], pools: Sequence[tuple[str, Deployment]], first_ns: int) -> list[dict[str, Any]]:
        """Return the figures of each replica, by index. `ups`: when each was up; `pools`: names and deployments;
        `first_ns`: when the run began, from which `up_from_s` counts."""
        have = len(self._sums["steps"])
        found = []
        for index, up in enumerate(ups):
            one = {name: float(sums[index]) if index < have else 0.0 for name, sums in self._sums.items()}
            name, deployment = pools[up.pool]
            times = {"up_from_s": (up.since_ns - first_ns) / SECOND, "up_s": up.ns / SECOND}
            found.append({"replica": index, "pool": name, **times, **_figures(one, up.ns, deployment)})
        return found


def _figures(one: Mapping[str, float], up_ns: float, deployment: Deployment) -> dict[str, Any]:
    capacity = deployment.capacity_tokens
    return {
        "requests": int(one["requests"]),
        "output_tokens": int(one["output_tokens"]),
        "busy_share": per(one["gpu_ns"], up_ns * deployment.pp),
        "queue_ms": per(one["queued_ns"] / MS, one["scheduled"]),
        "hit_rate": per(one["hit_tokens"], one["prompt_tokens"]) if deployment.prefix_caching else None,
        "kv_used_share": per(one["kv_used_ns"], up_ns * capacity),
        "kv_peak_share": per(one["kv_peak"], capacity),
    }


def of_pools(
    replicas: Sequence[Mapping[str, Any]], pools: Sequence[tuple[str, Deployment]], duration_ns: int
) -> dict[str, Any]:
    """Return the figures of each pool: sums and means over its replicas, weighted by their time up; `imbalance` is the
    busiest replica's share of its time at work over the mean one's; `replicas_mean` the mean number up at a time."""
    found = {}
    for name, deployment in pools:
        own = [one for one in replicas if one["pool"] == name]
        up_s = sum(one["up_s"] for one in own)
        gpu_hours = up_s * deployment.tp * deployment.pp / 3600
        found[name] = {
            "model": deployment.model.name,
            "gpu": deployment.gpu.name,
            "replicas": len(own),
            "replicas_mean": per(up_s, duration_ns / SECOND),
            "requests": sum(one["requests"] for one in own),
            "output_tokens": sum(one["output_tokens"] for one in own),
            **{key: _mean(own, key) for key in ("busy_share", "queue_ms", "hit_rate", "kv_used_share")},
            "imbalance": imbalance([one["busy_share"] for one in own]),
            "gpu_hours": gpu_hours,
            "usd": gpu_hours * deployment.usd_per_gpu_hour,
        }
    return found


def imbalance(shares: Sequence[float | None]) -> float | None:
    """Return the largest over the mean; 1 is even. None where there is nothing."""
    known = [share or 0.0 for share in shares]
    return per(max(known, default=0.0) * len(known), sum(known))


def _mean(replicas: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a figure over replicas: by their requests where it is one of requests, else by their time up."""
    weight = "requests" if key in ("queue_ms", "hit_rate") else "up_s"
    known = [one for one in replicas if one[key] is not None]
    return per(sum(one[key] * one[weight] for one in known), sum(one[weight] for one in known))
