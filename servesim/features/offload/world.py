"""Memory beyond the GPU in a small world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from servesim.contracts import kv_allocators, schedulers
from servesim.contracts.connector import Connector
from servesim.contracts.place import Place
from servesim.errors import UserError
from servesim.features.offload.connectors.hicache import LEAST_BLOCK, SglangHiCache
from servesim.features.offload.connectors.lmcache import LMCacheConnector
from servesim.features.offload.connectors.store import Store
from servesim.features.offload.connectors.vllm import VllmOffload
from servesim.features.offload.params import HiCacheParams, LMCacheParams, StoreParams, VllmOffloadParams
from servesim.features.offload.part import Offloading
from servesim.features.offload.setup import PCIE_SHARE, OffloadSetup, check_policies


def with_offload(world: Any, draws: Any) -> Any:
    """Return the world with memory beyond the GPU for each replica, if its policies support it. The GPU has memory for
    all requests, because requests could otherwise hold memory and wait for each other forever."""
    factor = draws.one("offload factor", [1, 1, 2])
    blocks = factor * draws.one("offload blocks", [3, 8, 40, 400])  # a GPU block takes a byte
    size, ns_per_block = str(blocks), draws.one("offload link", [1, 300, 5_000])
    scheduler, kv = schedulers.resolve(world.scheduler)[0], kv_allocators.resolve(world.kv)[0]
    policy, kind = draws.one("offload policy", ["lru", "arc"]), draws.one("offload kind", ["vllm", "lmcache", "store"])
    server, node = draws.one("offload server", [None, 0.1, 0.002]), draws.one("offload node", [0, 0, 2])
    cls: type[Connector] = VllmOffload
    params: Any = VllmOffloadParams(cpu=size, eviction_policy=policy)
    if SglangHiCache.needs <= scheduler.supports and not cls.needs <= scheduler.supports:
        whole = max(LEAST_BLOCK // world.block_size, 1)
        cls, params = SglangHiCache, HiCacheParams(cpu=str(blocks * whole))
    elif kind == "lmcache":
        remote = {"remote": str(2 * blocks), "remote_gb_s": 1 / ns_per_block, "remote_server_gb_s": server}
        chunk, more = factor * world.block_size, remote if draws.one("offload remote", [True, False]) else {}
        cls, params = LMCacheConnector, LMCacheParams(cpu=size, chunk_size=chunk, replicas_per_node=node, **more)
    elif kind == "store":
        cls = Store
        params = StoreParams(size, 1 / ns_per_block, server_gb_s=server, block_size_factor=factor)
    try:
        check_policies(scheduler, kv, cls)
    except UserError:
        return world
    roles = {"both", *draws.one("offload roles", [("prefill",), ("decode",), ("prefill", "decode")])}
    if cls is not SglangHiCache:
        params = replace(params, first=draws.one("offload first", [False, False, True]))
    return offloaded(world.roomy(), cls, params, ns_per_block, roles - {*cls.not_behind})


def offloaded_by(world: Any, draws: Any, cls: type[Connector], params: Any) -> Any:
    """Return the world with a connector of this class for each replica."""
    return offloaded(world, cls, params, draws.one("offload link", [1, 300, 5_000]), {"both"})


def offloaded(world: Any, cls: type[Connector], params: Any, ns_per_block: int, roles: set[str]) -> Any:
    """Return the world with a connector for each replica of these roles. A GPU block takes a byte."""

    def offload(world: Any, pools: Any) -> Offloading:
        memory = OffloadSetup(cls, params, place_in(world, ns_per_block))
        return Offloading([(pool, memory) for pool in pools if pool.role in roles])

    return replace(world, features=(*world.features, offload))


def place_in(world: Any, ns_per_block: int) -> Place:
    """Return the place of a connector in a small world, whose link to the host takes this time for a GPU block."""
    return Place(
        block_size=world.block_size,
        block_bytes=1,
        num_gpus=1,
        num_blocks=world.num_blocks,
        kv_tokens=world.num_blocks * world.block_size,
        num_layers=10,
        pcie_bytes_per_s=1e9 / ns_per_block / PCIE_SHARE,
    )
