"""The cache_aware policy of vllm-router 0.1.17: longest known prefix, at the least loaded of the replicas that have it.

Source: vllm-project/router, src/policies/cache_aware.rs, a fork of SGLang's. It compares tokens (the original asks a
worker to tokenize), and evicts every 120 s down to 33,554,432 tokens per replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._cache_aware import CacheAware, CacheAwareParams


@dataclass(frozen=True, kw_only=True)
class VllmRouterParams(CacheAwareParams):
    """Thresholds, with the command-line defaults; the tree's size is in tokens."""

    eviction_interval_s: float = 120
    """Time between evictions of entries beyond `max_tree_size`."""
    max_tree_size: int = 33_554_432
    chars_per_token: float = 1


@routers.register("vllm-router-cache-aware")
class VllmRouterCacheAware(CacheAware):
    """Policy like sglang-cache-aware, except that a hit goes to the least loaded replica (lowest index) of all that
    received the deepest node."""

    searched = True
    Params = VllmRouterParams

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        choices = ready(views)
        if self.unbalanced(choices):
            return [self.emptiest(choices)]
        rate, found = self.match(request)
        if rate > self.params.cache_threshold:
            return [self.emptiest(sorted(set(found.node.tenants) & set(choices)) or choices)]
        return [self.emptiest(choices)]
