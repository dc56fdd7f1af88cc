"""The llm-d router with its default profile: weighted queue length, KV usage, and approximate prefixes.

Scorers are in `_llm_d`. "Approximate" means that each replica's cache is assumed to hold the last 31,250 blocks of 64
tokens sent there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.params import check_least
from servesim.contracts.request import Request
from servesim.contracts.router import ReplicaState, routers
from servesim.policies.routing._block_sets import BlockSets, block_keys
from servesim.policies.routing._llm_d import Floats, LlmDParams, LlmDRouter


@dataclass(frozen=True)
class ApproximateParams(LlmDParams):
    """Scorer weights (0: not used), with the defaults of the default profile."""

    block_size: int = 64
    """Tokens per block."""
    lru_blocks: int = 31_250
    """Number of blocks remembered per replica."""
    longest_prefix: int = 131_072
    """Number of tokens considered at the start of a prompt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "block_size", "lru_blocks", "longest_prefix")


class ApproximateRouter(LlmDRouter):
    """Scorers with prefixes inferred from sent prompts: each replica is taken to have the last blocks sent there."""

    def __init__(self, params: Any, num_replicas: int) -> None:
        super().__init__(params, num_replicas)
        self.index = BlockSets()
        self._used: list[dict[Hashable, None]] = [{} for _ in range(num_replicas)]  # least recently used first
        self._asked: tuple[Request | None, Sequence[Hashable]] = (None, ())

    @abstractmethod
    def blocks(self, request: Request) -> Sequence[Hashable]:
        """Return the keys of the prompt's blocks that are looked up and remembered."""

    @abstractmethod
    def capacity(self) -> int:
        """Return the number of blocks remembered per replica."""

    def found(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        """Return the number of a prompt's blocks that count as cached, by replica."""
        return self.index.leading(keys, len(self.load))

    def prefix_shares(self, request: Request) -> Floats:
        keys = self._keys(request)
        return self.found(keys) / max(len(keys), 1)

    def cached_tokens(self, request: Request, replica: int) -> int:
        size: int = self.params.block_size
        return self.index.leading_at(replica, self._keys(request)) * size

    def on_sent(self, request: Request, replica: int) -> None:
        super().on_sent(request, replica)
        used = self._used[replica]
        keys = self._keys(request)
        self.index.add(replica, [key for key in keys if key not in used])
        for key in keys:
            used.pop(key, None)
            used[key] = None
        gone = [key for key, _ in zip(used, range(len(used) - self.capacity()), strict=False)]
        for key in gone:
            del used[key]
        self.index.discard(replica, gone)

    def on_replica(self, replica: int, state: ReplicaState) -> None:
        super().on_replica(replica, state)
        while len(self._used) <= replica:
            self._used.append({})
        if state in ("gone", "failed"):
            self._used[replica].clear()
            self.index.clear(replica)

    def _keys(self, request: Request) -> Sequence[Hashable]:
        if self._asked[0] is not request:
            self._asked = request, self.blocks(request)
        return self._asked[1]


@routers.register("llm-d")
class LlmD(ApproximateRouter):
    """Router that picks the replica with the highest weighted score, with prefixes inferred from sent prompts."""

    searched = True
    Params = ApproximateParams

    def blocks(self, request: Request) -> Sequence[Hashable]:
        size = self.params.block_size
        return block_keys(request, size)[: self.params.longest_prefix // size]

    def capacity(self) -> int:
        return int(self.params.lru_blocks)
