"""Small worlds whose replicas have host memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from servesim.contracts.connector import connectors
from servesim.contracts.place import Place
from servesim.engine.cluster import Cluster
from servesim.engine.several import Several
from servesim.features.offload.connector import Offload
from servesim.features.offload.connectors.vllm import POLICIES
from servesim.features.offload.hicache import HiCache
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.setup import PCIE_SHARE, OffloadSetup
from servesim.features.offload.tiers import Direction, Tier
from tests.support.worlds import World


class Host(NamedTuple):
    """Host memory of a replica, copied at 1 byte per GPU block."""

    blocks: int
    policy: str = "lru"
    factor: int = 1
    ns_per_block: int = 1000
    start_ns: int = 0
    told_at_end: bool = False

    def make(self, gpu_block_tokens: int) -> Offload:
        """Return the connector of one replica."""
        link = (max(1_000_000_000 // self.ns_per_block, 1), self.start_ns)
        return Offload(
            POLICIES[self.policy](self.blocks),
            Direction(*link),
            Direction(*link),
            block_tokens=self.factor * gpu_block_tokens,
            gpu_block_tokens=gpu_block_tokens,
            gpu_block_bytes=1,
            told_at_end=self.told_at_end,
        )


class Chunks(NamedTuple):
    """LMCache of a replica, in host memory and on a disk, copied at 1 byte per GPU block."""

    blocks: int
    disk_blocks: int = 0
    factor: int = 1
    ns_per_block: int = 1000
    disk_ns_per_block: int = 5000
    save_decode: bool = False
    least: int = 0

    def make(self, gpu_block_tokens: int) -> LMCache:
        """Return the connector of one replica."""
        sizes = [("cpu", self.blocks, self.ns_per_block), ("disk", self.disk_blocks, self.disk_ns_per_block)]
        tiers = [
            Tier(name, POLICIES["lru"](size), Direction(1_000_000_000 // ns, 0), Direction(1_000_000_000 // ns, 0))
            for name, size, ns in sizes
            if size
        ]
        return LMCache(
            tiers,
            block_tokens=self.factor * gpu_block_tokens,
            token_bytes=1 / gpu_block_tokens,
            save_decode=self.save_decode,
            least=self.least,
        )


class Hierarchy(NamedTuple):
    """HiCache of a replica, copied at 1 byte per GPU block."""

    blocks: int
    factor: int = 1
    ns_per_block: int = 1000
    layers: int = 10
    hits: int = 1

    def make(self, gpu_block_tokens: int) -> HiCache:
        """Return the connector of one replica."""
        rate = max(1_000_000_000 // self.ns_per_block, 1)
        return HiCache(
            POLICIES["lru"](self.blocks),
            Direction(rate, 0),
            Direction(rate, 0),
            block_tokens=self.factor * gpu_block_tokens,
            gpu_block_tokens=gpu_block_tokens,
            gpu_block_bytes=1,
            layers=self.layers,
            hits=self.hits,
        )


def offloaded(world: World, mode: str, host: Host | Chunks | Hierarchy, check: bool = True) -> Cluster:
    """A cluster whose replicas each have such memory."""
    cluster = world.cluster(mode, check=check)
    for replica in cluster.replicas:
        replica.connect(host.make(replica.core.kv.block_size))
    return cluster


def behind(cluster: Cluster, role: str, host: Host | Chunks | Hierarchy, first: bool = False) -> None:
    """Give such memory to the replicas of one role, beside what else they load from."""
    for replica in cluster.replicas:
        if replica.role == role:
            replica.connect(host.make(replica.core.kv.block_size), first)


def memories(cluster: Cluster) -> list[Any]:
    """The connectors of all replicas that have such memory."""
    found = [each.core.connector for each in cluster.replicas]
    each = [one for own in found for one in (own.connectors if isinstance(own, Several) else [own])]
    return [one for one in each if isinstance(one, Offload | LMCache)]


def setup_of(params: Any, block_size: int, ns_per_block: int, num_blocks: int) -> OffloadSetup:
    """The connector with these parameters, for replicas whose GPU blocks take a byte."""
    found = [connectors.resolve(name)[0] for name in connectors.names()]
    (cls,) = [each for each in found if each.Params is type(params)]
    rate = 1e9 / ns_per_block / PCIE_SHARE
    return OffloadSetup(cls, params, Place(block_size, 1, 1, num_blocks, num_blocks * block_size, 10, rate))
