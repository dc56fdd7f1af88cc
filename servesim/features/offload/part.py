"""Part of a run with memory beyond its GPUs, which gives each core its connector and counts the transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from servesim.contracts.part import ClusterView, Finished, Part
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.features.offload.figures import OFFLOAD, Behind, Place
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.reports import Reports
from servesim.features.offload.setup import OffloadSetup, check_policies

DECODE_HICACHE = (
    "offload: HiCache is off in pools of the role decode, because SGLang's decode servers have no radix cache by "
    "default (--disaggregation-decode-enable-radix-cache and its HiCache, both experimental, are not modeled)"
)


class Offloading(Part):
    """Part that connects cores to their memory. `memories`: the memory of each pool that has any; `said`: notes on the
    memory for the reader; `more`: returns the memory of a pool that was added since, or None if it has none."""

    def __init__(
        self,
        memories: Sequence[tuple[Pool, OffloadSetup]],
        said: Sequence[str] = (),
        more: Callable[[Pool], OffloadSetup | None] = lambda pool: None,
    ) -> None:
        self._memories: list[tuple[Pool, OffloadSetup | None]] = [*memories]
        self._said, self._more = said, more
        self._connected: list[Place] = []

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def core_made(self, replica: Any) -> None:
        memory = self._memory_of(self._cluster.fleet.pool_of[replica.index])
        if memory is None:
            return
        before = next((place for place in reversed(self._connected) if place.replica == replica.index), None)
        if before is not None and isinstance(before.connector, LMCache):
            before.connector.crash()
        connector = memory.connector()
        try:
            replica.connect(connector, memory.params.first)
        except ValueError as error:
            raise UserError(f"offload: first: {error}") from None
        replica.core.step_plainly()
        if replica.core.kv.on_event is not None:
            for tier in connector.tiers:
                tier.reports = Reports.of(replica, tier, connector.block_tokens)
        self._connected.append(Place(replica.index, replica.pool, replica.core, connector))

    def _memory_of(self, pool: Pool) -> OffloadSetup | None:
        for known, memory in self._memories:
            if known is pool:
                return memory
        memory = self._more(pool)
        self._memories.append((pool, memory))
        return memory

    def figures(self, finished: Finished) -> dict[str, Any]:
        behind = Behind.of(self._connected, finished, len(self._cluster.fleet.pools))
        return {"offload": OFFLOAD.of(behind)}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        return [*self._said]


def part_of(pools: Sequence[Any]) -> Offloading | None:
    """Return the part for the pools of a run (servesim.run.pool.PoolSetup), to which others may be added, or None if
    none has memory beyond its GPUs; raise UserError if one cannot have it."""
    memories, said = [], []
    for pool in pools:
        memory = _memory_of(pool)
        if memory is not None:
            memories.append((pool.pool, memory))
            said.append(memory.note(pool.server.gpu, pool.deployment.capacity_tokens))
        elif pool.scenario.offload is not None:
            said.append(DECODE_HICACHE)

    def more(added: Pool) -> OffloadSetup | None:
        return next((_memory_of(pool) for pool in pools if pool.pool is added), None)

    return Offloading(memories, list(dict.fromkeys(said)), more) if memories else None


def _memory_of(pool: Any) -> OffloadSetup | None:
    """Return the memory of a pool, or None if it has none."""
    settings, policies = pool.scenario.offload, pool.server.policies
    if settings is None or (settings["name"] == "hicache" and pool.pool.role == "decode"):
        return None
    memory = OffloadSetup.of(settings, pool.server.gpu, pool.deployment, pool.scenario.tp * pool.scenario.pp)
    check_policies(policies.scheduler, policies.kv, memory.params)
    return memory
