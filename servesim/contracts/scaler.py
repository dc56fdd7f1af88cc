"""Contract of autoscalers: how many replicas of a pool are wanted, asked again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from servesim.contracts.params import check_least, check_most
from servesim.contracts.router import Report
from servesim.plugins.registry import Registry


class Profile(Protocol):
    """The capability of one replica of the pool, by the cost of its steps; times in seconds."""

    def prefill_s(self, tokens: int) -> float:
        """Return the time of a step that computes a prompt of `tokens` tokens alone."""

    def decode_s(self, sequences: int, context: int) -> float:
        """Return the time of a step in which sequences of that context each get a token."""


class PoolLoad(NamedTuple):
    """Measurements of a pool at one instant."""

    at_ns: int
    ready: Mapping[int, Report]
    """Metrics of the replicas that take requests, by index: as they are now."""
    num_starting: int
    num_draining: int
    num_held: int
    """Requests that wait in the router and may be sent here."""
    arrived: int
    """Requests that came here since the last time, further tries included."""
    prompt_tokens: int
    """Tokens of their prompts."""
    finished: int
    """Requests that finished here since the last time."""
    output_tokens: int
    """Tokens of their answers."""

    @property
    def num_replicas(self) -> int:
        """Replicas that are ready or will be."""
        return len(self.ready) + self.num_starting

    @property
    def settled(self) -> bool:
        """Whether no replica is starting or draining."""
        return self.num_starting == self.num_draining == 0


@dataclass(frozen=True)
class ScalerParams:
    """Bounds of every autoscaler."""

    min: int = 1
    """Fewest replicas; 0: none while nothing comes, where the autoscaler can start from there."""
    max: int = 8
    """Most replicas."""

    def __post_init__(self) -> None:
        check_least(self, 0, "min")
        check_least(self, 1, "max")
        check_most(self, 4096, "max")  # as many replicas as a scenario may have
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, must be at most max ({self.max})")


class Scaler(ABC):
    """Says how many replicas a pool should have. Decisions are the pool's: a replica more takes its time to start, one
    fewer is drained (servesim.features.scaling.part)."""

    name: ClassVar[str] = "?"
    paper: ClassVar[str] = ""
    """Where the rule is described."""
    Params: ClassVar[type[Any]] = ScalerParams
    params: Any
    profile: Profile

    def __init__(self, params: Any, profile: Profile) -> None:
        self.params = params
        self.profile = profile

    @property
    @abstractmethod
    def every_s(self) -> float:
        """Seconds between two questions."""

    @abstractmethod
    def wanted(self, load: PoolLoad) -> int:
        """Return the replicas wanted, those that are starting included; held within `min` and `max` by the engine."""


scalers: Registry[Scaler] = Registry("scaler", Scaler, "servesim.policies.scaling")
