"""Small worlds whose replicas have host memory."""

from __future__ import annotations

from typing import NamedTuple

from servesim.engine.cluster import Cluster
from servesim.engine.offload import Direction, Offload
from servesim.engine.offload_memory import POLICIES
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


def offloaded(world: World, mode: str, host: Host, check: bool = True) -> Cluster:
    """A cluster whose replicas each have such memory."""
    cluster = world.cluster(mode, check=check)
    for replica in cluster.replicas:
        replica.connect(host.make(replica.core.kv.block_size))
        replica.core.step_plainly()
    return cluster


def memories(cluster: Cluster) -> list[Offload]:
    """The connectors of all replicas."""
    return [each.core.connector for each in cluster.replicas if isinstance(each.core.connector, Offload)]
