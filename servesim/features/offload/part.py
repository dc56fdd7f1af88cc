"""Part of a run with memory beyond its GPUs, which gives each core its connector and counts the transfers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from servesim.contracts.connector import connectors
from servesim.contracts.part import ClusterView, Finished, Part
from servesim.contracts.place import Place
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.features.offload.figures import OFFLOAD, Behind, Connected
from servesim.features.offload.reports import Reports
from servesim.features.offload.setup import OffloadSetup, check_policies


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
        self._connected: list[Connected] = []
        self._shared: dict[Hashable, Any] = {}  # what outlives cores, by any key of the connectors
        self._factors: dict[int, float] = {}  # of the network, by replica

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def core_made(self, replica: Any) -> None:
        memory = self._memory_of(self._cluster.fleet.pool_of[replica.index])
        if memory is None:
            return
        before = next((each for each in reversed(self._connected) if each.replica == replica.index), None)
        if before is not None:
            before.connector.crashed()
        connector = memory.connector(replica.index, self._shared)
        try:
            replica.connect(connector, connector.first)
        except ValueError as error:
            raise UserError(f"offload: first: {error}") from None
        if replica.core.kv.on_event is not None:
            for tier in connector.tiers:
                tier.reports = Reports.of(replica, tier, connector.block_tokens)
        self._connected.append(Connected(replica.index, replica.pool, replica.core, connector))
        if replica.index in self._factors:
            connector.network_changed(self._factors[replica.index])

    def wants(self, verb: str) -> bool:
        networked = any(memory is not None and memory.networked for _, memory in self._memories)
        return super().wants(verb) and (verb != "network_changed" or networked)

    def network_changed(self, index: int, factor: float) -> None:
        self._factors[index] = factor
        for each in self._connected:
            if each.replica == index:
                each.connector.network_changed(factor)

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
        if pool.scenario.offload is None:
            continue
        memory, why = _memory_of(pool)
        if memory is not None:
            memories.append((pool.pool, memory))
            why = memory.connector(0, {}).note()
        said.append(why)

    def more(added: Pool) -> OffloadSetup | None:
        found = [pool for pool in pools if pool.pool is added and pool.scenario.offload is not None]
        return _memory_of(found[0])[0] if found else None

    return Offloading(memories, list(dict.fromkeys(filter(None, said))), more) if memories else None


def _memory_of(pool: Any) -> tuple[OffloadSetup | None, str]:
    """Return the connector of a pool that has an offload, or None and the note that says why its role has none."""
    cls, params = connectors.configured(pool.scenario.offload)
    if pool.pool.role in cls.not_behind:
        return None, cls.not_behind[pool.pool.role]
    check_policies(pool.server.policies.scheduler, pool.server.policies.kv, cls)
    return OffloadSetup(cls, params, place_of(pool)), ""


def place_of(pool: Any) -> Place:
    """Return what connectors of a pool are told of its replicas."""
    gpu, deployment, gpus = pool.server.gpu, pool.deployment, pool.scenario.tp * pool.scenario.pp
    return Place(
        block_size=deployment.block_size,
        block_bytes=deployment.block_bytes,
        num_gpus=gpus,
        num_blocks=deployment.num_blocks,
        kv_tokens=deployment.capacity_tokens,
        num_layers=deployment.model.num_layers,
        pcie_bytes_per_s=gpu.pcie_bandwidth,
        gpu=gpu.name,
        role=pool.pool.role,
        kv=(deployment.model.name, deployment.kv_dtype, gpus, deployment.block_bytes / deployment.block_size),
    )
