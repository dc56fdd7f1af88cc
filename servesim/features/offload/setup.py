"""Conversion of offload settings into the memory of each replica, and notes on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servesim.contracts import KVAllocator, Scheduler
from servesim.errors import UserError
from servesim.features.offload.connector import Offload
from servesim.features.offload.hicache import HiCache
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.memory import POLICIES, HostMemory, Lru
from servesim.features.offload.params import HiCacheParams, HostParams, LMCacheParams, VllmOffloadParams, params_of
from servesim.features.offload.tiers import Direction, Tier
from servesim.hardware import Gpu
from servesim.metrics.measured import Deployment

PCIE_SHARE = 50 / 64
"""Share of a PCIe link's nominal bandwidth that KV copies reach in one direction: about 50 GB/s was measured on an H100
(PCIe 5.0 x16, 64 GB/s; vLLM's blog of 2026-01-08, blocks of 2 MB). Both directions at the same time reached a total of
83 GB/s, 17 % less than twice the rate of one direction, which is not modeled."""
HICACHE_TOKENS = 64
"""Minimum number of tokens in a block of HiCache's host memory (the page size in SGLang's guide); with smaller pages,
whole blocks of this size are stored and found."""


@dataclass(frozen=True)
class OffloadSetup:
    """Memory beyond the GPUs of each replica of a pool."""

    params: HostParams
    block_tokens: int
    """Tokens of a block, or chunk, in this memory."""
    gpu_block_tokens: int
    gpu_block_bytes: int
    """Bytes of a GPU block on one GPU."""
    gpus: int
    """GPUs of a replica."""
    bytes_per_s: int
    """Bandwidth of each GPU in each direction."""
    gpu_blocks: int
    layers: int
    """Layers of the model."""
    shared: dict[str, HostMemory] = field(default_factory=dict)
    """Memory shared by all replicas, by tier."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], gpu: Gpu, deployment: Deployment, gpus: int) -> OffloadSetup:
        """Resolve settings of a replica of `gpus` GPUs; raise UserError if they are wrong or no block fits."""
        params = params_of(settings)
        rate = params.gb_s * 1e9 if params.gb_s is not None else gpu.pcie_bandwidth * PCIE_SHARE
        size = deployment.block_size
        tokens = size * max(HICACHE_TOKENS // size, 1)
        if isinstance(params, VllmOffloadParams):
            tokens = params.block_size_factor * size
        elif isinstance(params, LMCacheParams):
            tokens = params.chunk_size
        blocks, layers = deployment.num_blocks, deployment.model.num_layers
        found = cls(params, tokens, size, deployment.block_bytes, gpus, round(rate), blocks, layers)
        for tier in found.tiers:
            found.blocks(tier)
        return found

    @property
    def tiers(self) -> list[str]:
        """Names of the kinds of memory, the fastest first."""
        return ["cpu", *(tier for tier in ("disk", "remote") if getattr(self.params, tier, "") != "")]

    def blocks(self, tier: str) -> int:
        """Return the number of blocks that a kind of memory holds; raise UserError if none fits."""
        params, said = self.params, getattr(self.params, tier)
        if isinstance(params, HiCacheParams) and said == "":
            return max(int(params.ratio * self.gpu_blocks * self.gpu_block_tokens) // self.block_tokens, 1)
        whole = self.gpu_block_bytes * self.gpus * self.block_tokens // self.gpu_block_tokens
        if params.bytes_of(tier) < whole:
            raise UserError(f"offload: {tier}={said} is too small for a block, which takes {whole / 2**20:.3g} MiB")
        return params.bytes_of(tier) // whole

    def connector(self) -> Offload | LMCache:
        """Return a new connector, for one more replica."""
        params, link = self.params, (self.bytes_per_s, round(self.params.start_us * 1000))
        if isinstance(params, LMCacheParams):
            token_bytes = self.gpu_block_bytes / self.gpu_block_tokens
            tiers = [Tier("cpu", Lru(self.blocks("cpu")), Direction(*link), Direction(*link))]
            tiers += [self._tier(params, tier) for tier in self.tiers[1:]]
            return LMCache(
                tiers,
                block_tokens=params.chunk_size,
                token_bytes=token_bytes,
                save_decode=params.save_decode_cache,
                least=params.min_retrieve_tokens,
            )
        sizes = {
            "block_tokens": self.block_tokens,
            "gpu_block_tokens": self.gpu_block_tokens,
            "gpu_block_bytes": self.gpu_block_bytes,
        }
        if isinstance(params, HiCacheParams):
            hits = 1 if params.write_policy == "write_through" else 2
            memory: HostMemory = Lru(self.blocks("cpu"))
            return HiCache(memory, Direction(*link), Direction(*link), layers=self.layers, hits=hits, **sizes)
        assert isinstance(params, VllmOffloadParams)
        memory = POLICIES[params.eviction_policy](self.blocks("cpu"))
        return Offload(memory, Direction(*link), Direction(*link), told_at_end=params.told == "at-end", **sizes)

    def _tier(self, params: LMCacheParams, name: str) -> Tier:
        """Return a slower tier, whose bandwidth the GPUs of a replica share."""
        rate = round(getattr(params, f"{name}_gb_s") * 1e9 / self.gpus)
        link = (max(rate, 1), round(getattr(params, f"{name}_start_us") * 1000))
        memory: HostMemory = Lru(self.blocks(name))
        if name == "remote":
            memory = self.shared.setdefault(name, memory)
        return Tier(name, memory, Direction(*link), Direction(*link), shared=name == "remote")

    def note(self, gpu: Gpu, gpu_tokens: int) -> str:
        """Return a note for the reader: the size of the memory, and the source of the link's bandwidth."""
        why = (
            "as given"
            if self.params.gb_s is not None
            else (f"50/64 of {gpu.name}'s PCIe bandwidth, as measured on an H100")
        )
        held = {tier: self.blocks(tier) * self.block_tokens for tier in self.tiers}
        more = "".join(f", {tier} for {tokens:,}" for tier, tokens in list(held.items())[1:])
        return (
            f"offload: host memory for {held['cpu']:,} tokens per replica ({held['cpu'] / gpu_tokens:.2g} x the "
            f"GPU's), copied at {self.bytes_per_s / 1000000000.0:.3g} GB/s per GPU in each direction ({why})"
            f"{more}"
        )


def check_policies(scheduler: type[Scheduler], kv: type[KVAllocator], params: HostParams) -> None:
    """Raise UserError if policies cannot be combined with host memory."""
    if kv.grouped:
        raise UserError(
            f"offload: kv {kv.name} keeps separate tables for sliding windows, whose offload is not modeled "
            "(engine.disable_hybrid_kv_cache_manager=true keeps all KV of these layers)"
        )
    if not params.needs <= scheduler.supports:
        can = params.of_engine
        raise UserError(f"offload: scheduler {scheduler.name} cannot load KV from host memory this way; use {can}")
    if kv.shares and "remote_kv" not in kv.supports:
        raise UserError(f"offload: kv {kv.name} cannot reserve memory for remote KV; use kv prefix-hash")
