"""Contract of autoscalers: the desired number of replicas of a pool, or of several pools together, requested
periodically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from servesim.contracts.params import check_least, check_most
from servesim.contracts.profile import Profile
from servesim.contracts.router import Report
from servesim.plugins.registry import Registry


class PoolLoad(NamedTuple):
    """Measurements of a pool at one instant."""

    at_ns: int
    ready: Mapping[int, Report]
    """Current metrics of the replicas that accept requests, by index."""
    num_starting: int
    num_draining: int
    num_held: int
    """Number of requests that wait outside of all replicas and may be sent here: in the router or, for a pool that only
    computes answers, with a computed prompt."""
    arrived: int
    """Number of requests that arrived here since the last call, retries included."""
    prompt_tokens: int
    """Number of prompt tokens of the requests that arrived since the last call."""
    finished: int
    """Number of requests that finished here since the last call."""
    output_tokens: int
    """Number of output tokens of the requests that finished since the last call."""
    ttft_s: float | None = None
    """Mean time to first token of the requests that finished since the last call, wherever their prompt was computed;
    None if none did or the autoscaler does not need "latency"."""
    tpot_s: float | None = None
    """Mean time per output token of those with at least two tokens; None as above."""
    e2e_s: float | None = None
    """Mean time from arrival to the last token of those requests; None as above."""
    least: int = 0
    """Minimum number of replicas of this pool, to which answers are raised."""
    most: int = 4096
    """Maximum number of replicas of this pool, to which answers are lowered."""
    others: Mapping[str, PoolLoad] = {}
    """Measurements of all other pools, scaled or not, by name, with counts since this autoscaler's last call; empty if
    it does not need "pools"."""

    @property
    def num_replicas(self) -> int:
        """Number of replicas that are ready or will be."""
        return len(self.ready) + self.num_starting

    @property
    def settled(self) -> bool:
        """Whether no replica is starting or draining."""
        return self.num_starting == self.num_draining == 0


@dataclass(frozen=True)
class ScalerParams:
    """Bounds of every autoscaler."""

    min: int = 1
    """Minimum number of replicas; 0 allows scaling to zero while there are no requests, if the autoscaler can start
    from there."""
    max: int = 8
    """Maximum number of replicas."""

    def __post_init__(self) -> None:
        check_least(self, 0, "min")
        check_least(self, 1, "max")
        check_most(self, 4096, "max")  # a scenario's maximum
        if self.min > self.max:
            raise ValueError(f"min is {self.min} but must be at most max ({self.max})")


class Scaler(ABC):
    """Policy for the number of replicas of a pool. The pool carries out its decisions: an added replica takes time to
    start, a removed one is drained (servesim.features.scaling.part)."""

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Reference that describes the rule."""
    Params: ClassVar[type[Any]] = ScalerParams
    needs: ClassVar[frozenset[str]] = frozenset()
    """Measurements that cost time and are made only on demand: "latency" (`ttft_s`, `tpot_s` and `e2e_s` of a load) and
    "pools" (`others`)."""
    params: Any
    profile: Profile
    """Performance of a replica of its pool; of the first one if it scales several."""
    profiles: Mapping[str, Profile] = {}
    """Performance of a replica of each pool of the run, by name."""

    def __init__(self, params: Any, profile: Profile) -> None:
        self.params = params
        self.profile = profile

    @classmethod
    def shared(cls, params: Any, profile: Profile) -> Hashable:
        """Return a key of a pool that names this autoscaler: one instance scales all pools with equal keys, through
        `wanted_of`. None (the default): each pool has its own instance."""
        return None

    @property
    @abstractmethod
    def every_s(self) -> float:
        """Seconds between two calls."""

    @abstractmethod
    def wanted(self, load: PoolLoad) -> int:
        """Return the desired number of replicas, including starting ones; the engine clamps it to `min` and `max`."""

    def wanted_of(self, loads: Mapping[str, PoolLoad]) -> Mapping[str, int]:
        """Return the desired number of replicas of each of its pools, by name; `min` and `max` hold for each. Default:
        `wanted` of each."""
        return {name: self.wanted(load) for name, load in loads.items()}


scalers: Registry[Scaler] = Registry("scaler", Scaler, "servesim.policies.scaling")
