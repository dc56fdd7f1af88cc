"""Facts that a connector is told of its replica, and its counts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from servesim.contracts.request import Request
from servesim.contracts.router import Role


@dataclass(frozen=True)
class Place:
    """A replica, as its connector sees it when it is made."""

    block_size: int
    """Tokens of a GPU block."""
    block_bytes: int
    """Bytes of a GPU block on each GPU of the replica."""
    num_gpus: int
    num_blocks: int
    """GPU blocks of the replica."""
    kv_tokens: int
    """Maximum number of tokens that its KV memory holds."""
    num_layers: int
    """Layers of the model."""
    pcie_bytes_per_s: float
    """Nominal bandwidth of a GPU's link to the host in each direction."""
    gpu: str = ""
    """Name of the GPU."""
    role: Role = "both"
    kv: Hashable = ()
    """Format of its KV: the model, the type of the values and the number of GPUs. Replicas can use each other's KV if
    this is equal."""
    index: int = 0
    """Index of the replica in the cluster."""
    shared: dict[Hashable, Any] = field(default_factory=dict)
    """Objects that connectors have in common, by any key: one dictionary for all cores of a run, crashed ones, too."""


@dataclass
class Counts:
    """KV that one connector has moved, for the summary's `offload`."""

    first_tokens: dict[int, int] = field(default_factory=dict)
    """Tokens loaded for requests that had not run yet, by row."""
    tier_tokens: dict[str, int] = field(default_factory=dict)
    """Tokens loaded for requests that had not run yet, by the tier that had them."""
    again_tokens: int = 0
    """Tokens loaded for requests that were preempted, or went on after a crash."""
    stored_tokens: int = 0
    dropped_blocks: int = 0
    refused: int = 0
    """Stores refused for lack of room."""
    deferred: int = 0
    """Lookups deferred because the KV was being loaded for another request."""
    load_ns: list[int] = field(default_factory=list)
    """Duration of each load, or of each step with loads."""

    @property
    def loaded_tokens(self) -> int:
        """Number of tokens loaded."""
        return sum(self.tier_tokens.values()) + self.again_tokens

    def loaded(self, request: Request, tokens: int, tier: str) -> None:
        """Count tokens that a request has loaded from a tier, such as "cpu" or "remote"."""
        if request.num_preemptions or (request.owner or request).num_migrations:
            self.again_tokens += tokens
            return
        self.first_tokens[request.row] = self.first_tokens.get(request.row, 0) + tokens
        self.tier_tokens[tier] = self.tier_tokens.get(tier, 0) + tokens
