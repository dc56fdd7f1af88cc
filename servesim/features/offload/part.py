"""Part of a run with memory beyond its GPUs, which gives each core its connector and counts the transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servesim.contracts.part import ClusterView, Finished, Part
from servesim.engine.core import EngineCore
from servesim.engine.pool import Pool
from servesim.features.offload.connector import Offload
from servesim.features.offload.figures import OFFLOAD, Behind
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.setup import OffloadSetup, check_policies


class Offloading(Part):
    """Part that connects cores to their memory. `memories`: the memory of each pool; `said`: notes on the memory for
    the reader; `more`: returns the memory of a pool that was added since."""

    def __init__(
        self,
        memories: Sequence[tuple[Pool, OffloadSetup]],
        said: Sequence[str] = (),
        more: Callable[[Pool], OffloadSetup] | None = None,
    ) -> None:
        self._memories, self._said, self._more = list(memories), said, more
        self._connected: list[tuple[EngineCore, Offload | LMCache]] = []
        self._present: dict[int, Offload | LMCache] = {}  # by replica

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def core_made(self, replica: Any) -> None:
        pool = self._cluster.fleet.pool_of[replica.index]
        memory = next((memory for of, memory in self._memories if of is pool), None)
        if memory is None:
            assert self._more is not None
            memory = self._more(pool)
            self._memories.append((pool, memory))
        if isinstance(before := self._present.get(replica.index), LMCache):
            before.crash()
        connector = self._present[replica.index] = memory.connector()
        replica.connect(connector)
        replica.core.step_plainly()
        self._connected.append((replica.core, connector))

    def figures(self, finished: Finished) -> dict[str, Any]:
        return {"offload": OFFLOAD.of(Behind(self._connected, finished.requests, [*self._present.values()]))}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        return [*self._said]


def part_of(settings: Mapping[str, Any], pools: Sequence[Any]) -> Offloading:
    """Return the part for the pools of a run (servesim.run.pool.PoolSetup); raise UserError if a pool cannot have
    memory beyond its GPUs."""
    memories, said = [], []
    for pool in pools:
        memory = _memory_of(settings, pool)
        memories.append((pool.pool, memory))
        said.append(memory.note(pool.server.gpu, pool.deployment.capacity_tokens))

    def more(added: Pool) -> OffloadSetup:
        return _memory_of(settings, next(pool for pool in pools if pool.pool is added))

    return Offloading(memories, list(dict.fromkeys(said)), more)


def _memory_of(settings: Mapping[str, Any], pool: Any) -> OffloadSetup:
    policies = pool.server.policies
    memory = OffloadSetup.of(settings, pool.server.gpu, pool.deployment, pool.scenario.tp * pool.scenario.pp)
    check_policies(policies.scheduler, policies.kv, memory.params)
    return memory
