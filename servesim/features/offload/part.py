"""Part of a run with memory beyond its GPUs, which gives each core its connector and counts the transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servesim.contracts.part import ClusterView, Finished, Part
from servesim.engine.pool import Pool
from servesim.errors import UserError
from servesim.features.offload.figures import OFFLOAD, Behind, Place
from servesim.features.offload.setup import OffloadSetup, check_policies

DECODE_HICACHE = (
    "offload: HiCache is off in pools of the role decode, because SGLang's decode servers have no radix cache by "
    "default (--disaggregation-decode-enable-radix-cache and its HiCache, both experimental, are not modeled)"
)


class Offloading(Part):
    """Part that connects cores to their memory. `memories`: the memory of each pool that has any; `said`: notes on the
    memory for the reader."""

    def __init__(self, memories: Sequence[tuple[Pool, OffloadSetup]], said: Sequence[str] = ()) -> None:
        self._memories, self._said = memories, said
        self._connected: list[Place] = []

    def join(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def core_made(self, replica: Any) -> None:
        pool = self._cluster.fleet.pool_of[replica.index]
        memory = next((memory for of, memory in self._memories if of is pool), None)
        if memory is None:
            return
        connector = memory.connector()
        try:
            replica.connect(connector, memory.params.first)
        except ValueError as error:
            raise UserError(f"offload: first: {error}") from None
        replica.core.step_plainly()
        self._connected.append(Place(replica.index, pool.name, replica.core, connector))

    def figures(self, finished: Finished) -> dict[str, Any]:
        behind = Behind.of(self._connected, finished, len(self._cluster.fleet.pools))
        return {"offload": OFFLOAD.of(behind)}

    def notes(self, summary: Mapping[str, Any]) -> list[str]:
        return [*self._said]


def part_of(pools: Sequence[Any]) -> Offloading | None:
    """Return the part for the pools of a run (servesim.run.pool.PoolSetup), or None if none has memory beyond its GPUs;
    raise UserError if one cannot have it."""
    memories, said = [], []
    for pool in pools:
        settings = pool.scenario.offload
        if settings is None:
            continue
        if settings["name"] == "hicache" and pool.pool.role == "decode":
            said.append(DECODE_HICACHE)
            continue
        deployment, policies = pool.deployment, pool.server.policies
        memory = OffloadSetup.of(settings, pool.server.gpu, deployment, pool.scenario.tp * pool.scenario.pp)
        check_policies(policies.scheduler, policies.kv, memory.params)
        memories.append((pool.pool, memory))
        said.append(memory.note(pool.server.gpu, deployment.capacity_tokens))
    return Offloading(memories, list(dict.fromkeys(said))) if memories else None
