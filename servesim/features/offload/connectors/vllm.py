"""`vllm`: vLLM's offloading connector."""

from __future__ import annotations

from collections.abc import Mapping

from servesim.contracts.connector import connectors
from servesim.contracts.place import Place
from servesim.features.offload.connector import Offload
from servesim.features.offload.lru import Lru
from servesim.features.offload.memory import Arc, HostMemory
from servesim.features.offload.params import VllmOffloadParams
from servesim.features.offload.setup import blocks_in, host_link, host_note
from servesim.features.offload.tiers import Direction

POLICIES: Mapping[str, type[HostMemory]] = {"lru": Lru, "arc": Arc}
"""Kinds of host memory, by vLLM's name for the eviction policy."""


@connectors.register("vllm")
class VllmOffload(Offload):
    """Copies blocks to host memory when they are computed, and loads them beside the steps."""

    Params = VllmOffloadParams
    params: VllmOffloadParams

    def __init__(self, params: VllmOffloadParams, place: Place) -> None:
        self.params, self.place, self.first = params, place, params.first
        tokens, link = params.block_size_factor * place.block_size, host_link(params, place)
        super().__init__(
            POLICIES[params.eviction_policy](blocks_in("cpu", params.cpu, tokens, place)),
            Direction(*link),
            Direction(*link),
            block_tokens=tokens,
            gpu_block_tokens=place.block_size,
            gpu_block_bytes=place.block_bytes,
            told_at_end=params.told == "at-end",
        )

    def note(self) -> str:
        return host_note(self.params, self.place, self.memory.num_blocks * self.block_tokens)
