"""The cache_aware policy of SGLang's model gateway (smg) 1.9.0 and 1.13.0.

Source: lightseekorg/smg, model_gateway/src/policies/cache_aware.rs. Engines' reports, polled every 10 s, are used by
1.9.0 only if a threshold below is set, and by 1.13.0 for its overload protection. Not modeled from 1.13.0: the warm-up
of new replicas, and its rules for replicas whose reports stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaView, ready, routers
from servesim.policies.routing._breakers import LOAD_MONITOR_S
from servesim.policies.routing._cache_aware import CacheAwareParams
from servesim.policies.routing.sglang_cache_aware import SglangCacheAware


@dataclass(frozen=True, kw_only=True)
class SmgParams(CacheAwareParams):
    """Thresholds, with the command-line defaults."""

    version: Literal["1.9.0", "1.13.0"] = "1.9.0"
    """Version of smg."""
    overload_token_usage_threshold: float = 1.0
    """1.9.0: share of KV memory in use at any replica above which the pool counts as unbalanced; 1 = never."""
    balance_token_usage_threshold: float = 1.0
    """1.9.0: difference in KV usage between the fullest and emptiest replica above which the pool counts as unbalanced;
    1 = never."""
    overload_protection: bool = True
    """1.13.0: whether to skip replicas with 8 waiting requests or 80 % of KV memory in use while others are below
    both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "overload_token_usage_threshold", "balance_token_usage_threshold")


@routers.register("smg-cache-aware")
class SmgCacheAware(SglangCacheAware):
    """Version-specific policy. 1.9.0: same as sglang-cache-aware, except that ties for the least loaded go to the
    replica that was sent the fewest requests. 1.13.0: no global balance check; a hit goes to the least loaded replica
    that has the deepest node, unless that replica exceeds the mean load by more than `balance_abs_threshold` or a
    smaller number that grows with the mean."""

    Params = SmgParams

    @classmethod
    def polls_s(cls, params: SmgParams) -> float:
        reads = params.overload_protection if params.version == "1.13.0" else _by_usage(params)
        return LOAD_MONITOR_S if reads else 0.0

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        if self.params.version == "1.13.0":
            return self._by_mean(request, self._sound(views))
        choices = ready(views)
        if self._full(views, choices):
            return [self.emptiest(choices)]
        return super().candidates(request, views)

    def emptiest(self, choices: Sequence[int]) -> int:
        return min(choices, key=lambda i: (self.load[i], self.processed[i], i))

    def _full(self, views: Sequence[ReplicaView], choices: Sequence[int]) -> bool:
        params = self.params
        if not _by_usage(params):
            return False
        usages = [views[i].kv_usage for i in choices]
        spread = max(usages) - min(usages)
        overloaded = max(usages) > params.overload_token_usage_threshold
        return overloaded or bool(spread > params.balance_token_usage_threshold)

    def _sound(self, views: Sequence[ReplicaView]) -> Sequence[int]:
        choices = ready(views)
        if not self.params.overload_protection:
            return choices
        return [i for i in choices if views[i].num_waiting < 8 and views[i].kv_usage < 0.8] or choices

    def _by_mean(self, request: Request, choices: Sequence[int]) -> Sequence[int]:
        rate, found = self.match(request)
        loads = {i: self.load[i] for i in choices}
        least = min(loads.values())
        emptiest = [i for i in choices if loads[i] == least]
        holders = [i for i in choices if i in found.node.tenants]
        if rate <= self.params.cache_threshold or not holders:
            return emptiest
        low = min(loads[i] for i in holders)
        mean = sum(loads.values()) / len(choices)
        spill = min(self.params.balance_abs_threshold, max(4, ceil(2 * sqrt(mean))))
        if low - mean > spill and low > self.params.balance_rel_threshold * mean:
            return emptiest
        return [i for i in holders if loads[i] == low]


def _by_usage(params: SmgParams) -> bool:
    """Return whether 1.9.0 looks at KV usage."""
    return params.overload_token_usage_threshold < 1 or params.balance_token_usage_threshold < 1
