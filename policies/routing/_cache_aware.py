"""Cache-aware routing of the SGLang router family: a prompt goes to the replica that received its longest known prefix,
unless the replicas are out of balance. Version differences are in separate files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView
from servesim.policies.routing._breakers import GatewayParams, GatewayRouter
from servesim.policies.routing._tenant_tree import Match, TenantTree


@dataclass(frozen=True, kw_only=True)
class CacheAwareParams(GatewayParams):
    """Thresholds and circuit breakers, with the command-line defaults."""

    cache_threshold: float = 0.3
    """Known share of a prompt above which it goes to a replica that has that prefix."""
    balance_abs_threshold: int = 64
    """Number of requests in flight by which the most loaded replica may exceed the least loaded."""
    balance_rel_threshold: float = 1.5
    """Multiple of the least loaded replica's requests in flight that the most loaded may have. Replicas are out of
    balance if they exceed both thresholds."""
    eviction_interval_s: float = 60
    """Time between evictions of entries beyond `max_tree_size`."""
    max_tree_size: int = 67_108_864
    """Maximum number of characters of each replica's prompts in the tree."""
    chars_per_token: float = 4
    """Characters per token, for `max_tree_size`; the simulator's prompts have no text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "cache_threshold", "balance_abs_threshold", "balance_rel_threshold", "max_tree_size")
        check_most(self, 1, "cache_threshold")
        if not self.eviction_interval_s > 0 or not self.chars_per_token > 0:
            raise ValueError("eviction_interval_s and chars_per_token must be more than 0")


class CacheAware(GatewayRouter):
    """Tree and counts shared by all versions; each version decides in `candidates`."""

    Params = CacheAwareParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.tree = TenantTree(num_replicas)
        self._found: Match | None = None
        self._interval_ns = round(params.eviction_interval_s * 1e9)
        self._evict_ns = self._interval_ns
        self._limit = int(params.max_tree_size / params.chars_per_token)

    @abstractmethod
    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas from which one is drawn uniformly for the request."""

    def choose(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(self.candidates(request, views))

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        self.tree.insert(request, replica, self._found)
        self._found = None

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        if state == "ready":
            self.tree.add(replica)
        elif state in ("gone", "failed"):
            self.tree.remove(replica)

    def match(self, request: Request) -> tuple[float, Match]:
        """Return the known share of a prompt, and the position in the tree. If an eviction is due, it runs first."""
        now = self.clock()
        if now >= self._evict_ns:
            self.tree.evict(self._limit)
            self._evict_ns = (now // self._interval_ns + 1) * self._interval_ns
        self._found = found = self.tree.match(request)
        return (found.length / request.prompt_len if request.prompt_len else 0.0), found

    def unbalanced(self, choices: Sequence[int]) -> bool:
        """Return whether the most loaded replica exceeds the least loaded by more than both thresholds allow."""
        loads = [self.load[i] for i in choices]
        low, high = min(loads), max(loads)
        params = self.params
        return bool(high - low > params.balance_abs_threshold and high > low * params.balance_rel_threshold)

    def emptiest(self, choices: Sequence[int]) -> int:
        """Return the replica with the fewest requests in flight, or the one with the lowest index if tied."""
        return min(choices, key=self.load.__getitem__)
