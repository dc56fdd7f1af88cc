"""Memory for KV beyond the GPU, the links to it, and counts of its use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from servesim.contracts.request import Request
from servesim.features.offload.memory import HostMemory

if TYPE_CHECKING:
    from servesim.features.offload.reports import Reports

NANO = 1_000_000_000


@dataclass
class Direction:
    """Copies in one direction, one after the other; all GPUs copy their shares in parallel."""

    bytes_per_s: int
    start_ns: int
    free_ns: int = 0
    """Time at which all copies are done."""
    busy_ns: int = 0
    """Total time of the copies."""

    def copy(self, num_bytes: int, after_ns: int) -> int:
        """Begin a copy of `num_bytes` of each GPU at or after a time; return when it is done, in ns."""
        ns = self.start_ns - (-num_bytes * NANO // self.bytes_per_s)
        self.busy_ns += ns
        self.free_ns = max(self.free_ns, after_ns) + ns
        return self.free_ns


@dataclass
class Tier:
    """Memory of one kind, and the links from and to it: host memory is linked to the GPU, the other tiers to host
    memory. Several replicas may share the memory of a remote store."""

    name: str
    memory: HostMemory
    reading: Direction
    writing: Direction
    most: int = 0
    """Peak number of blocks held."""
    shared: bool = False
    """Whether other replicas use it, too, so that it outlives the process of this one."""
    reports: Reports | None = None
    """Reports on its blocks, if there are listeners to KV events."""

    def note(self) -> None:
        """Update the peak after blocks were added."""
        self.most = max(self.most, len(self.memory))


@dataclass
class OffloadCounts:
    """Counts of a replica's memory beyond the GPU."""

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

    def loaded(self, request: Request, tokens: int, tier: str) -> None:
        """Count tokens that a request has loaded."""
        if request.num_preemptions or (request.owner or request).num_migrations:
            self.again_tokens += tokens
            return
        self.first_tokens[request.row] = self.first_tokens.get(request.row, 0) + tokens
        self.tier_tokens[tier] = self.tier_tokens.get(tier, 0) + tokens
