"""Pool of identical replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from servesim.contracts.cost import CostModel
from servesim.contracts.router import Role
from servesim.engine.core import EngineCore
from servesim.engine.profile import CostProfile
from servesim.engine.replica import Replica


@dataclass
class Pool:
    """Replicas of one model on one kind of GPU with the same policies."""

    cores: Sequence[EngineCore]
    """Cores of the initial replicas."""
    cost: CostModel
    depth: int
    """Number of steps in flight (servesim.engine.replica)."""
    spawn: Callable[[], EngineCore] | None = None
    """Function that makes the core of an additional or restarted replica."""
    name: str = "default"
    role: Role = "both"
    models: tuple[str, ...] = ()
    """Names of the models served here, or empty if any model is served."""
    made_of: Mapping[str, type[Replica]] = field(default_factory=dict)
    """Classes of the pool's replicas by mode. For a mode that is missing, the mode's own class is used."""
    ranks: int = 1
    """Number of successive replicas that form one server, whose state they share: they start, drain and fail
    together."""
    num_gpus: int = 1
    usd_per_hour: float = 0.0
    """Price of one replica."""
    _profile: CostProfile | None = None

    def profile(self) -> CostProfile:
        """Return the performance of one replica by the pool's cost model."""
        if self._profile is None:
            self._profile = CostProfile(self)
        return self._profile

    def serves(self, model: str) -> bool:
        """Return whether requests for this model may be sent here. An empty name means no specific model."""
        return not model or not self.models or model in self.models
