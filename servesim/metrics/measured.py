"""A finished run, as the input from which its figures are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from servesim.hardware import Gpu, ModelSpec
from servesim.metrics.requests import ALL, SECOND, Limits, Part, Requests, Stats
from servesim.metrics.steps import StepTotals
from servesim.records.spec_stats import SpecStats


@dataclass(frozen=True)
class Deployment:
    """The serving system, as far as figures depend on it."""

    model: ModelSpec
    gpu: Gpu
    replicas: int
    tp: int
    pp: int
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    """KV blocks of one replica."""
    capacity_tokens: int
    """Maximum number of tokens that the KV memory of one replica holds."""
    block_bytes: int
    """Bytes of a block on one GPU."""
    prefix_caching: bool
    usd_per_gpu_hour: float
    up_ns: int | None = None
    """Total uptime of its replicas; None means that all of them were up all the time."""

    def replica_ns(self, duration_ns: int) -> int:
        """Return the total uptime of replicas in a run of this duration."""
        return self.replicas * duration_ns if self.up_ns is None else self.up_ns

    def up(self, duration_ns: int) -> float:
        """Return the mean number of replicas up in a run of this duration."""
        return self.replicas if self.up_ns is None else self.up_ns / max(duration_ns, 1)

    def gpus(self, duration_ns: int) -> float:
        """Return the mean number of GPUs in use in a run of this duration."""
        return self.up(duration_ns) * self.tp * self.pp


class Good(NamedTuple):
    """Requests within limits."""

    slo_ms: Mapping[str, float]
    ended: float
    """Requests that ended in the period and completed within every limit."""
    arrived_good: float
    """Requests that arrived in the period and completed within every limit; equal to `ended` for a whole run."""
    arrived: int
    within: Mapping[str, int]
    """Requests that completed within each limit, by metric."""
    seconds: float
    slo_classes_ms: Mapping[str, Mapping[str, float]] | None = None
    """Limits of classes that have their own."""


def good_of(part: Part, slo: Mapping[str, float], limits: Limits | None = None, seconds: float | None = None) -> Good:
    """Return the counts of requests that are within every limit. `limits`: limits of each completed request, if they
    differ; `seconds`: the time over which rates are computed, by default from the first arrival to the last token."""
    within = part.met(slo if limits is None else limits)
    good = within.pop(ALL)
    over = part.duration_ns / SECOND if seconds is None else seconds
    return Good(slo, good, good, part.total("arrived"), within, over)


@dataclass(frozen=True)
class Measured:
    """A finished run."""

    requests: Requests
    itl: Stats
    """Gaps between tokens, pooled over requests."""
    totals: StepTotals
    pools: Sequence[Deployment]
    slo: Mapping[str, float]
    retries: int = 0
    unsent: int = 0
    drafts: Sequence[SpecStats] = ()
    """Speculative decoding counts, by replica."""
    relative_error: float | None = None
    """Relative standard error of an entry of the kernel tables; None if it is unknown."""

    @cached_property
    def duration_ns(self) -> int:
        """Time from the first arrival to the last token."""
        return self.requests.duration_ns

    @cached_property
    def seconds(self) -> float:
        """Time from the first arrival to the last token, in seconds."""
        return self.duration_ns / SECOND

    @cached_property
    def _totals(self) -> dict[str, int]:
        return {}

    def total(self, name: str) -> int:
        """Return a sum over the requests that arrived (servesim.metrics.requests.TOTALS)."""
        if name not in self._totals:
            self._totals[name] = self.requests.total(name)
        return self._totals[name]

    ended = total
    """Return a sum over the work delivered in the period; for a whole run, the sum over its requests."""

    def latency_ms(self, name: str) -> Stats:
        """Return the statistics of a latency."""
        return self.requests.latency_ms(name)

    @property
    def good(self) -> Good | None:
        """Requests within the limits of the scenario, or None without limits."""
        return good_of(self.requests, self.slo) if self.slo else None

    @property
    def prefix_caching(self) -> bool:
        """Whether any replica has a prefix cache."""
        return any(pool.prefix_caching for pool in self.pools)

    @cached_property
    def alone(self) -> Deployment | None:
        """The only deployment, or None if there are several pools."""
        return self.pools[0] if len(self.pools) == 1 else None

    @cached_property
    def kv_capacity(self) -> float:
        """KV memory of all replicas in token-nanoseconds."""
        return sum(pool.capacity_tokens * pool.replica_ns(self.duration_ns) for pool in self.pools)

    def gpu_hours_of(self, pool: Deployment) -> float:
        """Return the GPU-hours of a pool."""
        return pool.gpus(self.duration_ns) * self.duration_ns / SECOND / 3600

    @cached_property
    def gpu_hours(self) -> float:
        """GPU-hours of all GPUs that were up."""
        return sum(self.gpu_hours_of(pool) for pool in self.pools)

    @cached_property
    def usd(self) -> float:
        """Price of the GPU-hours."""
        return sum(self.gpu_hours_of(pool) * pool.usd_per_gpu_hour for pool in self.pools)
