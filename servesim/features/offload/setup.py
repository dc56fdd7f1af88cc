"""Facts that a connector is told of its replica, demands on its policies, and sizes and links that several have."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from servesim.contracts import KVAllocator, Scheduler, make
from servesim.contracts.connector import Connector
from servesim.contracts.place import Place
from servesim.errors import UserError
from servesim.features.offload.lru import Lru
from servesim.features.offload.memory import HostMemory
from servesim.features.offload.params import HostParams, bytes_of
from servesim.features.offload.tiers import Channel, Direction, Tier

PCIE_SHARE = 50 / 64
"""Share of a PCIe link's nominal bandwidth that KV copies reach in one direction: about 50 GB/s was measured on an H100
(PCIe 5.0 x16, 64 GB/s; vLLM's blog of 2026-01-08, blocks of 2 MB). Both directions at the same time reached a total of
83 GB/s, 17 % less than twice the rate of one direction, which is not modeled."""
T = TypeVar("T")


@dataclass(frozen=True)
class OffloadSetup:
    """Connector of each replica of a pool."""

    cls: type[Connector]
    params: Any
    place: Place
    """Its place, but for the index of the replica and what is shared."""

    @property
    def networked(self) -> bool:
        """Whether it is reached over the network, which may be slow."""
        return self.connector(0, {}).networked

    def connector(self, index: int, shared: dict[Hashable, Any]) -> Connector:
        """Return a new connector for a core of a replica. Raise UserError if its memory is too small."""
        made: Connector = make(self.cls, self.params, replace(self.place, index=index, shared=shared))
        return made


def blocks_in(name: str, said: str | float, block_tokens: int, place: Place) -> int:
    """Return the number of blocks that a memory of this size holds; raise UserError if none fits."""
    whole = place.block_bytes * place.num_gpus * block_tokens // place.block_size
    if bytes_of(name, said) < whole:
        raise UserError(f"offload: {name}={said} is too small for a block, which takes {whole / 2**20:.3g} MiB")
    return bytes_of(name, said) // whole


def host_rate(params: HostParams, place: Place) -> int:
    """Return the bandwidth of each GPU's link to the host in each direction, bytes/s."""
    return round(params.gb_s * 1e9 if params.gb_s is not None else place.pcie_bytes_per_s * PCIE_SHARE)


def host_link(params: HostParams, place: Place) -> tuple[int, int]:
    """Return the bandwidth of each GPU's link to the host, bytes/s, and the time until its first byte, ns."""
    return host_rate(params, place), round(params.start_us * 1000)


def common(place: Place, key: Hashable, made: T) -> T:
    """Return what all replicas with this key and the same format of KV have in common: this, if nothing is there."""
    found: T = place.shared.setdefault((key, place.kv), made)
    return found


def store_tier(
    name: str, num_blocks: int, place: Place, *, gb_s: float, start_us: float, server_gb_s: float | None, key: Hashable
) -> Tier:
    """Return a tier in a store that all replicas with this key share. `gb_s`: bandwidth of a replica, for all its GPUs;
    `server_gb_s`: bandwidth of the store, or None for no limit."""
    memory: HostMemory = common(place, key, Lru(num_blocks))
    rate, start_ns = max(round(gb_s * 1e9 / place.num_gpus), 1), round(start_us * 1000)
    links = []
    for way in ("read", "write"):
        channel = common(place, (key, way), Channel(max(round(server_gb_s * 1e9), 1))) if server_gb_s else None
        links.append(Direction(rate, start_ns, channel, place.num_gpus))
    return Tier(name, memory, links[0], links[1], shared=True, networked=True)


def host_note(params: HostParams, place: Place, tokens: int) -> str:
    """Return a note on host memory for this number of tokens: its size, and the source of its link's bandwidth."""
    given = params.gb_s is not None
    why = "as given" if given else f"50/64 of {place.gpu}'s PCIe bandwidth, as measured on an H100"
    return (
        f"offload: host memory for {tokens:,} tokens per replica ({tokens / place.kv_tokens:.2g} x the "
        f"GPU's), copied at {host_rate(params, place) / 1e9:.3g} GB/s per GPU in each direction ({why})"
    )


def check_policies(scheduler: type[Scheduler], kv: type[KVAllocator], connector: type[Connector]) -> None:
    """Raise UserError if policies cannot be combined with a connector."""
    if kv.grouped:
        raise UserError(
            f"offload: kv {kv.name} keeps separate tables for sliding windows, whose offload is not modeled "
            "(engine.disable_hybrid_kv_cache_manager=true keeps all KV of these layers)"
        )
    needs = connector.needs | ({"external"} if connector.in_step else set())
    if not needs <= scheduler.supports:
        can = connector.of_engine
        raise UserError(f"offload: scheduler {scheduler.name} cannot load KV from host memory this way; use {can}")
    if kv.shares and "remote_kv" not in kv.supports:
        raise UserError(f"offload: kv {kv.name} cannot reserve memory for remote KV; use kv prefix-hash")
