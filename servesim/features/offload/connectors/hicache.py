"""`hicache`: SGLang's HiCache."""

from __future__ import annotations

from servesim.contracts.connector import connectors
from servesim.contracts.place import Place
from servesim.features.offload.hicache import HiCache
from servesim.features.offload.lru import Lru
from servesim.features.offload.params import HiCacheParams
from servesim.features.offload.setup import blocks_in, host_link, host_note
from servesim.features.offload.tiers import Direction

LEAST_BLOCK = 64
"""Minimum number of tokens in a block of HiCache's host memory (the page size in SGLang's guide); with smaller pages,
whole blocks of this size are stored and found."""


@connectors.register("hicache")
class SglangHiCache(HiCache):
    """Copies blocks to host memory beside the steps, and loads them layer by layer within a step."""

    Params = HiCacheParams
    params: HiCacheParams

    def __init__(self, params: HiCacheParams, place: Place) -> None:
        self.params, self.place, self.first = params, place, params.first
        size, link = place.block_size, host_link(params, place)
        tokens = size * max(LEAST_BLOCK // size, 1)
        blocks = max(int(params.ratio * place.num_blocks * size) // tokens, 1)
        super().__init__(
            Lru(blocks if params.cpu == "" else blocks_in("cpu", params.cpu, tokens, place)),
            Direction(*link),
            Direction(*link),
            block_tokens=tokens,
            gpu_block_tokens=size,
            gpu_block_bytes=place.block_bytes,
            layers=place.num_layers,
            hits=1 if params.write_policy == "write_through" else 2,
        )

    def note(self) -> str:
        return host_note(self.params, self.place, self.memory.num_blocks * self.block_tokens)
