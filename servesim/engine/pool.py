"""A pool: replicas that are alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from servesim.contracts.cost import CostModel
from servesim.contracts.router import Role
from servesim.engine.core import EngineCore
from servesim.engine.replica import Replica


@dataclass
class Pool:
    """Replicas of one model on one kind of GPU under the same policies."""

    cores: Sequence[EngineCore]
    """Cores of the initial replicas."""
    cost: CostModel
    depth: int
    """Steps in flight (servesim.engine.replica)."""
    spawn: Callable[[], EngineCore] | None = None
    """Makes the core of another one, or of one that starts again."""
    name: str = "default"
    role: Role = "both"
    models: tuple[str, ...] = ()
    """Names that requests may ask for here; none: all."""
    made_of: Mapping[str, type[Replica]] = field(default_factory=dict)
    """Classes of its replicas by mode; those of the mode if there is none."""

    def serves(self, model: str) -> bool:
        """Return whether requests that ask for this model may be sent here; empty: for none in particular."""
        return not model or not self.models or model in self.models
