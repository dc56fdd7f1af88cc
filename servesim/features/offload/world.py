"""Memory beyond the GPU in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.contracts import kv_allocators, schedulers
from servesim.errors import UserError
from servesim.features.offload.params import HiCacheParams, HostParams, LMCacheParams, VllmOffloadParams
from servesim.features.offload.part import Offloading
from servesim.features.offload.setup import OffloadSetup, check_policies


def with_offload(world: Any, draws: Any) -> Any:
    """Return the world with memory beyond the GPU for each replica, if its policies support it. The GPU has memory for
    all requests, because requests could otherwise hold memory and wait for each other forever."""
    factor = draws.one("offload factor", [1, 1, 2])
    size = str(factor * draws.one("offload blocks", [3, 8, 40, 400]))  # a GPU block takes a byte
    kinds: dict[str, HostParams] = {
        "hicache": HiCacheParams(cpu=size),
        "vllm": VllmOffloadParams(cpu=size, eviction_policy=draws.one("offload policy", ["lru", "arc"])),
        "lmcache": LMCacheParams(cpu=size, chunk_size=factor * world.block_size),
    }
    params = kinds[draws.one("offload kind", ["vllm", "lmcache"])]
    scheduler, kv = schedulers.resolve(world.scheduler)[0], kv_allocators.resolve(world.kv)[0]
    if params.needs - scheduler.supports:
        params = kinds["hicache"]
    try:
        check_policies(scheduler, kv, params)
    except UserError:
        return world
    roles = {"both", *draws.one("offload roles", [("prefill",), ("decode",), ("prefill", "decode")])}
    if isinstance(params, HiCacheParams):
        roles -= {"decode"}
    else:
        params = replace(params, first=draws.one("offload first", [False, False, True]))
    ns_per_block = draws.one("offload link", [1, 300, 5_000])

    def offload(world: Any, pools: Any) -> Offloading:
        memory = OffloadSetup(
            params,
            block_tokens=factor * world.block_size,
            gpu_block_tokens=world.block_size,
            gpu_block_bytes=1,
            gpus=1,
            bytes_per_s=1_000_000_000 // ns_per_block,
            gpu_blocks=world.num_blocks,
            layers=10,
        )
        own = [pool for pool in pools if pool.role in roles]
        return Offloading([(pool, memory) for pool in own])

    return replace(world.roomy(), features=(*world.features, offload))
