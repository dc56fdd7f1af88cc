"""NVIDIA Dynamo's KV router (ai-dynamo-runtime 1.6.1) with the engines' KV events: router mode `kv`.

Costs and bookings are in `_dynamo`. The index contains the blocks that engines have reported as stored and not yet
removed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servesim.contracts.kv_events import BlockRemoved, BlockStored, KVEvent, Medium
from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, routers
from servesim.policies.routing._block_sets import BlockSets
from servesim.policies.routing._dynamo import Counts, DynamoParams, DynamoRouter, Floats


@dataclass(frozen=True)
class DynamoKVParams(DynamoParams):
    """Cost weights, with the defaults of ai-dynamo-runtime 1.6.1."""

    router_track_output_blocks: bool = False
    """Whether to also book the blocks of an answer as it grows, one at a time."""
    host_cache_hit_weight: float = 0.75
    """Credit of a block in host memory that continues those found on the GPU, in blocks of prefill."""
    disk_cache_hit_weight: float = 0.25
    """Credit of a block on a replica's disk that continues those in host memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "host_cache_hit_weight", "disk_cache_hit_weight")
        check_most(self, 1, "host_cache_hit_weight", "disk_cache_hit_weight")


@routers.register("dynamo-kv")
class DynamoKV(DynamoRouter):
    """Router that picks the lowest-cost replica, based on the cached blocks that replicas report."""

    searched = True
    tiers = True
    Params = DynamoKVParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.index = BlockSets()
        """Blocks in the replicas' prefix caches."""
        self._lower = {"cpu": BlockSets(), "storage": BlockSets()}
        self._weights = {"cpu": params.host_cache_hit_weight, "storage": params.disk_cache_hit_weight}
        self._grown: dict[Request, int] = {}

    def hears(self) -> frozenset[str]:
        """Return what `Router.hears` does, without output blocks if none are booked. (Requests that wait while replicas
        are busy by their KV usage are also reconsidered at each output block.)"""
        params, own = self.params, type(self).on_output_block is DynamoKV.on_output_block
        looks = params.router_queue_threshold is not None and params.active_decode_blocks_threshold is not None
        deaf = own and not looks and not params.router_track_output_blocks
        return super().hears() - {"on_output_block"} if deaf else super().hears()

    def overlap(self, keys: Sequence[Hashable]) -> Counts:
        return self.index.leading(keys, len(self.load))

    def overlap_at(self, replica: int, keys: Sequence[Hashable]) -> int:
        return self.index.leading_at(replica, keys)

    def lower_credit(self, keys: Sequence[Hashable], overlap: Counts) -> Floats | None:
        if not any(index.sizes for index in self._lower.values()):
            return None
        credit, reached = np.zeros(len(overlap)), overlap
        for medium, index in self._lower.items():
            until = index.continued(keys, reached)
            credit += self._weights[medium] * (until - reached)
            reached = until
        return credit

    def lower_credit_at(self, replica: int, keys: Sequence[Hashable], overlap: int) -> float:
        credit, reached = 0.0, overlap
        for medium, index in self._lower.items():
            more = index.leading_at(replica, keys[reached:])
            credit += self._weights[medium] * more
            reached += more
        return credit

    def on_output_block(self, request: Request, replica: int) -> None:
        if self.params.router_track_output_blocks and request in self._bookings:
            self.output_blocks[replica] += 1
            self._grown[request] = self._grown.get(request, 0) + 1

    def on_finish(self, request: Request, replica: int, status: FinishStatus) -> None:
        super().on_finish(request, replica, status)
        self.output_blocks[replica] -= self._grown.pop(request, 0)

    def on_kv_events(self, replica: int, events: Sequence[KVEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self._of(event.medium).add(replica, event.keys)
            elif isinstance(event, BlockRemoved):
                self._of(event.medium).discard(replica, event.keys)
            else:
                self.index.clear(replica)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        if state in ("gone", "failed"):
            for index in (self.index, *self._lower.values()):
                index.clear(replica)

    def _of(self, medium: Medium) -> BlockSets:
        return self.index if medium == "gpu" else self._lower[medium]
