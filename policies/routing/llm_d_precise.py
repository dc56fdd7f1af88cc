"""The llm-d router with precise prefixes: engines' cache reports, weighted together with queue length and KV usage.

Scorers are in `_llm_d`. Blocks are the engine's own; a prompt just sent counts as cached for 2 s, so that a burst of
identical prompts does not scatter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from servesim.contracts.kv_events import BlockRemoved, BlockStored, KVEvent, Medium
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, routers
from servesim.policies.routing._block_sets import BlockSets, block_keys, members
from servesim.policies.routing._llm_d import Floats, LlmDParams, LlmDRouter


@dataclass(frozen=True)
class PreciseParams(LlmDParams):
    """Scorer weights (0: not used), with the values from llm-d's guide."""

    prefix_weight: float = 2
    queue_weight: float = 1
    kv_utilization_weight: float = 1
    speculative_ttl_s: float = 2
    """Seconds for which a sent prompt counts as cached; 0 disables this, as in 2025."""
    min_max: bool = False
    """Whether the score is (found - fewest) / (most - fewest) among replicas that have the prompt's first block, 1 if
    they have equally many, instead of the found share of the prompt (llm-d-inference-scheduler v0.2 and v0.3,
    pkg/plugins/scorer/utils.go)."""
    cpu_tier_weight: float = 0.8
    """Part that a block in host memory counts for (kvCacheBackendConfigs; one on the GPU counts for 1)."""
    storage_tier_weight: float = 0.3
    """Part that a block on a replica's disk counts for."""


@routers.register("llm-d-precise")
class LlmDPrecise(LlmDRouter):
    """Router that picks the replica with the highest weighted score, with prefixes from the engines' KV events."""

    tiers = True
    Params = PreciseParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.index = BlockSets()
        self._lower = {"cpu": BlockSets(), "storage": BlockSets()}
        self._speculative: deque[tuple[int, int, Sequence[Hashable]]] = deque()  # expiry, replica, blocks
        self._asked: tuple[Request | None, Sequence[Hashable]] = (None, ())

    def prefix_shares(self, request: Request) -> Floats:
        while self._speculative and self._speculative[0][0] <= self.clock():
            _, replica, blocks = self._speculative.popleft()
            self.index.discard(replica, blocks)
        keys = self._keys(request)
        tiered = any(index.sizes for index in self._lower.values())
        found = self._weighted(keys) if tiered else self.index.leading(keys, len(self.load)).astype(float)
        if self.params.min_max:
            return _min_max(found)
        return found / max(len(keys), 1)

    def cached_tokens(self, request: Request, replica: int) -> int:
        sets = [index for _, index in self._media()]
        known = takewhile(lambda key: any(index.has(replica, key) for index in sets), self._keys(request))
        return sum(1 for _ in known) * self.output_block

    def _media(self) -> list[tuple[float, BlockSets]]:
        """Return each kind of memory with what a block there counts for."""
        params, lower = self.params, self._lower
        return [
            (1.0, self.index),
            (params.cpu_tier_weight, lower["cpu"]),
            (params.storage_tier_weight, lower["storage"]),
        ]

    def _weighted(self, keys: Sequence[Hashable]) -> Floats:
        """Return for each replica the sum of what its leading blocks count for, each in the best memory that has it."""
        media, num, known = self._media(), len(self.load), None
        totals, alive = np.zeros(num), np.ones(num, np.bool_)
        for key in keys:
            masks = [index.holders(key) for _, index in media]
            if masks != known:
                known, held = masks, [members(mask, num) for mask in masks]
                alive &= np.logical_or.reduce(held)
                if not alive.any():
                    break
                best = np.max([weight * has for (weight, _), has in zip(media, held, strict=True)], axis=0)
            totals += best * alive
        return totals

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        if self.params.speculative_ttl_s:
            keys = self._keys(request)
            self.index.add(replica, keys)
            expiry = self.clock() + round(self.params.speculative_ttl_s * 1e9)
            self._speculative.append((expiry, replica, keys))

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self._of(event.medium).add(replica, event.keys)
            elif isinstance(event, BlockRemoved):
                self._of(event.medium).discard(replica, event.keys)
            else:
                self._forget(replica)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        if state in ("gone", "failed"):
            self._forget(replica)
            for index in self._lower.values():
                index.clear(replica)

    def _of(self, medium: Medium) -> BlockSets:
        return self.index if medium == "gpu" else self._lower[medium]

    def _forget(self, replica: int) -> None:
        self.index.clear(replica)
        self._speculative = deque(entry for entry in self._speculative if entry[1] != replica)

    def _keys(self, request: Request) -> Sequence[Hashable]:
        if self._asked[0] is not request:
            self._asked = request, block_keys(request, self.output_block)
        return self._asked[1]


def _min_max(found: Floats) -> Floats:
    hits = found[found > 0]
    if not len(hits):
        return np.zeros(len(found))
    least, most = hits.min(), hits.max()
    if least == most:
        return (found > 0).astype(float)
    return np.asarray(np.maximum(found - least, 0) / (most - least))
