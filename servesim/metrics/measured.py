"""A run that was measured: what its figures are made from."""

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
    """Tokens the KV memory of one replica holds at most."""
    block_bytes: int
    """Bytes of a block on one GPU."""
    prefix_caching: bool
    usd_per_gpu_hour: float
    up_ns: int | None = None
    """Time that its replicas were up, in all; None: all of them all the time."""

    def replica_ns(self, duration_ns: int) -> int:
        """Return the time that replicas were up in a run of this duration."""
        return self.replicas * duration_ns if self.up_ns is None else self.up_ns

    def up(self, duration_ns: int) -> float:
        """Return the mean number of replicas up at a time in a run of this duration."""
        return self.replicas if self.up_ns is None else self.up_ns / max(duration_ns, 1)

    def gpus(self, duration_ns: int) -> float:
        """Return the mean number of GPUs at a time in a run of this duration."""
        return self.up(duration_ns) * self.tp * self.pp


class Good(NamedTuple):
    """Requests within limits."""

    slo_ms: Mapping[str, float]
    ended: float
    """Completed within every limit, those that ended in the time."""
    arrived_good: float
    """The same, of those that arrived in the time: of a whole run it is one number."""
    arrived: int
    within: Mapping[str, int]
    """Completed within each limit, by metric."""
    seconds: float
    slo_classes_ms: Mapping[str, Mapping[str, float]] | None = None
    """Limits of classes that have their own."""


def good_of(part: Part, slo: Mapping[str, float], limits: Limits | None = None, seconds: float | None = None) -> Good:
    """Return which requests are within every limit. `limits`: those of each completed request, if they are not all
    alike; `seconds`: over which rates are taken, by default from the first arrival to the last token."""
    within = part.met(slo if limits is None else limits)
    good = within.pop(ALL)
    over = part.duration_ns / SECOND if seconds is None else seconds
    return Good(slo, good, good, part.total("arrived"), within, over)


@dataclass(frozen=True)
class Measured:
    """A run that is over."""

    requests: Requests
    itl: Stats
    """The gaps between tokens, pooled over requests."""
    totals: StepTotals
    pools: Sequence[Deployment]
    slo: Mapping[str, float]
    retries: int = 0
    unsent: int = 0
    drafts: Sequence[SpecStats] = ()
    """Counts of speculative decoding, by replica."""
    relative_error: float | None = None
    """Standard error of an entry of the kernel tables, relative to it; None if it is not known."""

    @cached_property
    def duration_ns(self) -> int:
        """Time from the first arrival to the last token."""
        return self.requests.duration_ns

    @cached_property
    def seconds(self) -> float:
        """The same in seconds."""
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
    """Return a sum over what was delivered in the time: of a whole run over its requests."""

    def latency_ms(self, name: str) -> Stats:
        """Return the statistics of a latency."""
        return self.requests.latency_ms(name)

    @property
    def good(self) -> Good | None:
        """Requests within the limits of the scenario; None without limits."""
        return good_of(self.requests, self.slo) if self.slo else None

    @property
    def prefix_caching(self) -> bool:
        """Whether any replica has a prefix cache."""
        return any(pool.prefix_caching for pool in self.pools)

    @cached_property
    def alone(self) -> Deployment | None:
        """The deployment, where all replicas are alike."""
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
        """Time of all GPUs that were up."""
        return sum(self.gpu_hours_of(pool) for pool in self.pools)

    @cached_property
    def usd(self) -> float:
        """Price of that time."""
        return sum(self.gpu_hours_of(pool) * pool.usd_per_gpu_hour for pool in self.pools)
