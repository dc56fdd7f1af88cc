"""Contract of autoscalers: the desired number of replicas of a pool, requested periodically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from servesim.contracts.params import check_least, check_most
from servesim.contracts.router import Report
from servesim.plugins.registry import Registry


class Profile(Protocol):
    """Performance of one replica of the pool, from the cost of its steps; times in seconds."""

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that only computes a prompt of `tokens` tokens."""

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which that many sequences with that context get one token each."""


class PoolLoad(NamedTuple):
    """Measurements of a pool at one instant."""

    at_ns: int
    ready: Mapping[int, Report]
    """Current metrics of the replicas that accept requests, by index."""
    num_starting: int
    num_draining: int
    num_held: int
    """Number of requests that wait in the router and may be sent here."""
    arrived: int
    """Number of requests that arrived here since the last call, retries included."""
    prompt_tokens: int
    """Number of prompt tokens of the requests that arrived since the last call."""
    finished: int
    """Number of requests that finished here since the last call."""
    output_tokens: int
    """Number of output tokens of the requests that finished since the last call."""

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
    params: Any
    profile: Profile

    def __init__(self, params: Any, profile: Profile) -> None:
        self.params = params
        self.profile = profile

    @property
    @abstractmethod
    def every_s(self) -> float:
        """Seconds between two calls."""

    @abstractmethod
    def wanted(self, load: PoolLoad) -> int:
        """Return the desired number of replicas, including starting ones; the engine clamps it to `min` and `max`."""


scalers: Registry[Scaler] = Registry("scaler", Scaler, "servesim.policies.scaling")
