"""A pool: replicas that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from servesim.contracts.cost import CostModel
from servesim.contracts.router import Role
from servesim.engine.core import EngineCore


class DataParallel(NamedTuple):
    """How the ranks of a replica go together (servesim.engine.data_parallel)."""

    ranks: int
    finish_sync: int = 1
    """Steps after which ranks find out that none has anything left to do."""


@dataclass
class Pool:
    """Replicas of one model on one kind of GPU under the same policies."""

    cores: Sequence[EngineCore]
    """Of the replicas that are there from the beginning."""
    cost: CostModel
    depth: int
    """Steps in flight (servesim.engine.replica)."""
    spawn: Callable[[], EngineCore] | None = None
    """Makes the core of another one, or of one that starts again."""
    name: str = "default"
    role: Role = "both"
    models: tuple[str, ...] = ()
    """Names that requests may ask for here; none: all."""
    data_parallel: DataParallel | None = None
    """Successive replicas are ranks that step together; None: each steps by itself."""

    def serves(self, model: str) -> bool:
        """Return whether requests that ask for this model may be sent here; empty: for none in particular."""
        return not model or not self.models or model in self.models
