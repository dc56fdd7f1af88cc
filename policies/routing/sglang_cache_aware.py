"""The cache_aware policy of sglang-router 0.3.2, its default: longest known prefix, or the least loaded replica.

Source: sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs and tree.rs. It uses no engine metrics, only
its own counts. A shared system prompt stays with the replica that received it first until the load is out of balance:
the policy's known hot spot.
"""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._cache_aware import CacheAware


@routers.register("sglang-cache-aware")
class SglangCacheAware(CacheAware):
    """Policy that chooses the least loaded replica (lowest index) if replicas are out of balance. Otherwise, if more
    than `cache_threshold` of the prompt is known, it chooses the replica for which the deepest node was created, else
    the least loaded."""

    searched = True

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        choices = ready(views)
        if self.unbalanced(choices):
            return [self.emptiest(choices)]
        rate, found = self.match(request)
        owner = self.tree.owner(found.node) if rate > self.params.cache_threshold else None
        if owner is None:
            return [self.emptiest(choices)]
        return [owner] if owner in choices else self.elsewhere(choices)

    def elsewhere(self, choices: Sequence[int]) -> Sequence[int]:
        """Return the replicas for a prompt whose owner is not ready."""
        return [choices[0]]
