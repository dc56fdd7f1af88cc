"""NVIDIA Dynamo's KV router (ai-dynamo-runtime 1.6.1) without KV events: blocks that it has sent count as cached.

Costs and bookings are in `_dynamo`. A block counts as cached at a replica for 120 s after it was last sent there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, routers
from servesim.policies.routing._block_sets import BlockSets
from servesim.policies.routing._dynamo import Counts, DynamoParams, DynamoRouter


@dataclass(frozen=True)
class DynamoApproximateParams(DynamoParams):
    """Cost weights, with the defaults of ai-dynamo-runtime 1.6.1."""

    ttl_s: float = 120
    """Seconds for which sent blocks count as cached."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 0, "ttl_s")


@routers.register("dynamo-kv-approximate")
class DynamoKVApproximate(DynamoRouter):
    """Router that picks the lowest-cost replica, based on the blocks recently sent to each."""

    Params = DynamoApproximateParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.index = BlockSets()
        self._sent: list[tuple[int, int, Sequence[Hashable]]] = []  # expiry, replica, blocks; in order of expiry
        self._oldest = 0

    def overlap(self, keys: Sequence[Hashable]) -> Counts:
        self._expire(self.clock())
        return self.index.leading(keys, len(self.load))

    def overlap_at(self, replica: int, keys: Sequence[Hashable]) -> int:
        self._expire(self.clock())
        return self.index.leading_at(replica, keys)

    def on_sent(self, request: Request, replica: int) -> None:
        keys = self.keys(request)
        super().on_sent(request, replica)
        self.index.add(replica, keys)
        self._sent.append((self.clock() + round(self.params.ttl_s * 1e9), replica, keys))

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        if state in ("gone", "failed"):
            self.index.clear(replica)
            self._sent = [entry for entry in self._sent[self._oldest :] if entry[1] != replica]
            self._oldest = 0

    def _expire(self, now_ns: int) -> None:
        while self._oldest < len(self._sent) and self._sent[self._oldest][0] <= now_ns:
            _, replica, keys = self._sent[self._oldest]
            self.index.discard(replica, keys)
            self._oldest += 1
        if self._oldest > 1000:
            del self._sent[: self._oldest]
            self._oldest = 0
