"""`lmcache`: LMCache in vLLM's process, or in one of a node's."""

from __future__ import annotations

from servesim.contracts.connector import connectors
from servesim.contracts.place import Place
from servesim.features.offload.lmcache import LMCache
from servesim.features.offload.lru import Lru
from servesim.features.offload.memory import HostMemory
from servesim.features.offload.params import LMCacheParams
from servesim.features.offload.setup import blocks_in, common, host_link, host_note, store_tier
from servesim.features.offload.tiers import Channel, Direction, Tier


@connectors.register("lmcache")
class LMCacheConnector(LMCache):
    """Stores chunks of prompts in host memory, on a disk and in a store, and loads them at the start of a step."""

    Params = LMCacheParams
    params: LMCacheParams

    def __init__(self, params: LMCacheParams, place: Place) -> None:
        self.params, self.place, self.first = params, place, params.first
        super().__init__(
            [self._host(), *self._disk(), *self._remote()],
            block_tokens=params.chunk_size,
            token_bytes=place.block_bytes / place.block_size,
            save_decode=params.save_decode_cache,
            least=params.min_retrieve_tokens,
        )

    def _memory(self, name: str) -> HostMemory:
        """Return the memory of a tier, which the replicas of a node may share."""
        memory: HostMemory = Lru(self._blocks(name))
        return common(self.place, (name, self._node), memory) if self.params.replicas_per_node else memory

    @property
    def _node(self) -> int:
        return self.place.index // self.params.replicas_per_node

    def _blocks(self, name: str) -> int:
        return blocks_in(name, getattr(self.params, name), self.params.chunk_size, self.place)

    def _host(self) -> Tier:
        link = host_link(self.params, self.place)
        shared = self.params.replicas_per_node > 0
        return Tier("cpu", self._memory("cpu"), Direction(*link), Direction(*link), shared=shared)

    def _disk(self) -> list[Tier]:
        """Return the tier of the disk, if there is one. The GPUs of a replica share its bandwidth, and so do the
        replicas of a node."""
        params, place = self.params, self.place
        if params.disk_gb_s is None:
            return []
        start_ns, shared = round(params.disk_start_us * 1000), params.replicas_per_node > 0
        rate, links = max(round(params.disk_gb_s * 1e9 / place.num_gpus), 1), []
        for way in ("read", "write"):
            channel = Channel(rate * place.num_gpus)
            own = common(place, ("disk", way, self._node), channel) if shared else None
            links.append(Direction(rate, start_ns, own, place.num_gpus))
        return [Tier("disk", self._memory("disk"), links[0], links[1], shared=shared)]

    def _remote(self) -> list[Tier]:
        params = self.params
        if params.remote_gb_s is None:
            return []
        return [
            store_tier(
                "remote",
                self._blocks("remote"),
                self.place,
                gb_s=params.remote_gb_s,
                start_us=params.remote_start_us,
                server_gb_s=params.remote_server_gb_s,
                key=("remote", params.remote, params.remote_server_gb_s, params.chunk_size),
            )
        ]

    def note(self) -> str:
        tokens = {tier.name: tier.memory.num_blocks * self.block_tokens for tier in self.tiers}
        more = "".join(f", {name} for {held:,}" for name, held in list(tokens.items())[1:])
        return host_note(self.params, self.place, tokens["cpu"]) + more
