"""NVIDIA Dynamo's KV router (ai-dynamo-runtime 1.6.1) with the engines' KV events: router mode `kv`.

Costs and bookings are in `_dynamo`. The index contains the blocks that engines have reported as stored and not yet
removed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.kv_events import BlockRemoved, BlockStored, KVEvent
from servesim.contracts.request import Request
from servesim.contracts.router import FinishStatus, ReplicaState, routers
from servesim.policies.routing._block_sets import BlockSets
from servesim.policies.routing._dynamo import DynamoParams, DynamoRouter


@dataclass(frozen=True)
class DynamoKVParams(DynamoParams):
    """Cost weights, with the defaults of ai-dynamo-runtime 1.6.1."""

    router_track_output_blocks: bool = False
    """Whether to also book the blocks of an answer as it grows, one at a time."""


@routers.register("dynamo-kv")
class DynamoKV(DynamoRouter):
    """Router that picks the lowest-cost replica, based on the cached blocks that replicas report."""

    searched = True
    Params = DynamoKVParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.index = BlockSets()
        """Blocks in the replicas' prefix caches."""
        self._grown: dict[Request, int] = {}

    def overlap(self, request: Request, keys: Sequence[Hashable]) -> list[int]:
        return self.index.leading(keys, len(self.load))

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
                self.index.add(replica, event.keys)
            elif isinstance(event, BlockRemoved):
                self.index.discard(replica, event.keys)
            else:
                self.index.clear(replica)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        if state in ("gone", "failed"):
            self.index.clear(replica)
