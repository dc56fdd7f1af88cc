"""The prefixaware routing policy of the vLLM production stack's router 0.1.12 (commit a6c01db0).

Source: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py and prefix/hashtrie.py. It records which
prompts it sent to which replica, in chunks of 128 characters, and never forgets; load is ignored. A final partial chunk
of a prompt is not compared here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, ReplicaView, Router, ready, routers
from servesim.policies.routing._tenant_tree import Match, TenantTree

WINDOW_NS = 60 * 10**9
"""Time window in which the real router counts requests per second."""


@dataclass(frozen=True)
class ProductionStackParams:
    """Parameters of the prefix index, with the defaults of version 0.1.12."""

    chunk_chars: int = 128
    """Characters per chunk; a chunk matches as a whole or not at all."""
    chars_per_token: float = 4
    """Characters per token; the simulator's prompts have no text."""
    min_match_length: int = 0
    """Minimum match length in characters; for a shorter match, the request goes to the replica with the fewest requests
    in the last 60 s."""

    def __post_init__(self) -> None:
        check_least(self, 1, "chunk_chars")
        check_least(self, 0, "min_match_length")
        if not self.chars_per_token > 0:
            raise ValueError("chars_per_token must be more than 0")


@routers.register("production-stack-prefix-aware")
class ProductionStackPrefixAware(Router):
    """Router that picks any replica that received the longest known prefix, or any replica at all if there is no
    match."""

    Params = ProductionStackParams

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.tree = TenantTree(num_replicas)
        self._chunk = max(round(params.chunk_chars / params.chars_per_token), 1)
        self._least = params.min_match_length / params.chars_per_token
        self._found: Match | None = None
        self._sent: list[deque[int]] = [deque() for _ in range(num_replicas)]

    def candidates(self, request: Request, views: Sequence[ReplicaView]) -> Sequence[int]:
        """Return the replicas from which one is drawn uniformly for the request."""
        choices = ready(views)
        self._found = found = self.tree.match(request)
        length = found.length - found.length % self._chunk
        if length < self._least:
            return [min(choices, key=lambda i: self._recent(i, self.clock()))]
        node = found.node
        while node.parent is not None and node.parent.end >= length:
            node = node.parent
        return [i for i in choices if i in node.tenants] or choices

    def route(self, request: Request, views: Sequence[ReplicaView]) -> int:
        return self.pick(self.candidates(request, views))

    def on_sent(self, request: Request, replica: int) -> None:
        self.tree.insert(request, replica, self._found)
        if self._least:
            self._sent[replica].append(self.clock())

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        while len(self._sent) <= replica:
            self._sent.append(deque())
        if state == "ready":
            self.tree.add(replica)
        elif state == "gone":
            self.tree.remove(replica)

    def _recent(self, replica: int, now_ns: int) -> int:
        sent = self._sent[replica]
        while sent and sent[0] < now_ns - WINDOW_NS:
            sent.popleft()
        return len(sent)
