"""The llm-d router of 2025: queue length, KV usage, and approximate prefixes over the first bytes of a prompt's text.

Source: kubernetes-sigs/gateway-api-inference-extension v0.5, pkg/epp/scheduling/framework/plugins/multi/prefix, which
llm-d-inference-scheduler v0.2 runs. Three of its rules make it believe too much. Only `max_prefix_blocks_to_match`
blocks are looked at, 16 KiB of text by default, so that prompts with a longer head in common are one prompt to it.
Blocks are remembered when a request is sent, and leave only by `lru_capacity_per_server`, whatever the engine evicts.
And a replica counts as having every block that it was sent, even behind one that it has lost, as long as some replica
has that one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.params import check_least, check_most
from servesim.contracts.request import Request
from servesim.contracts.router import routers
from servesim.policies.routing._llm_d import LlmDParams
from servesim.policies.routing.llm_d import ApproximateRouter


@dataclass(frozen=True)
class TextParams(LlmDParams):
    """Scorer weights (0: not used) and the prefix scorer's parameters, with the defaults of v0.5."""

    prefix_weight: float = 1
    queue_weight: float = 1
    kv_utilization_weight: float = 1
    hash_block_size: int = 64
    """Bytes of text per block."""
    max_prefix_blocks_to_match: int = 256
    """Number of blocks considered at the start of a prompt."""
    lru_capacity_per_server: int = 31_250
    """Number of blocks remembered per replica."""
    bytes_per_token: float = 4
    """Mean length of a token in UTF-8 bytes; the source assumes 4. Random tokens have 6.1 (Qwen3) and 6.2 (Llama 3)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "hash_block_size", "max_prefix_blocks_to_match", "lru_capacity_per_server")
        check_least(self, 1, "bytes_per_token")
        check_most(self, self.hash_block_size, "bytes_per_token")


@routers.register("llm-d-text")
class LlmDText(ApproximateRouter):
    """Router that picks the replica with the highest weighted score, with prefixes inferred from the text sent."""

    Params = TextParams

    def blocks(self, request: Request) -> Sequence[Hashable]:
        content, size, wide = request.content, self.params.hash_block_size, self.params.bytes_per_token
        count = min(int(request.prompt_len * wide) // size, self.params.max_prefix_blocks_to_match)
        if content is None or not count:
            return ()
        ends = [min(-int(-size * block // wide), request.prompt_len) for block in range(1, count + 1)]
        return [("model", request.model), *(content.prefix_key(end) for end in ends)]  # the first block is its name

    def capacity(self) -> int:
        return int(self.params.lru_capacity_per_server)

    def found(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        return self.index.found(keys, len(self.load))
