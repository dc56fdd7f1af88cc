"""Reports of one replica's memory beyond the GPU to routers: which blocks can be read there, and which were dropped.

vLLM's offloading connector and SGLang's HiCache add such events, with their medium, to those of the GPU. Here they name
GPU blocks, whatever the size of a block in this memory. A store that replicas share is not reported: it is the same for
all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from simpy.events import Event

from servesim.contracts.kv_events import BlockRemoved, BlockStored, Medium, key_of
from servesim.contracts.request import Request
from servesim.engine.clock import LOADED
from servesim.features.offload.memory import Room
from servesim.features.offload.tiers import Tier

MEDIA: dict[str, Medium] = {"cpu": "cpu", "disk": "storage"}
"""Media of the tiers that are a replica's own."""


class Reports:
    """Reports on the blocks, of `block_tokens` tokens, in one tier of a replica whose prefix cache has a listener."""

    def __init__(self, replica: Any, tier: Tier, block_tokens: int) -> None:
        self._replica, self._core, self._clock = replica, replica.core, replica.clock
        self._memory, self._medium = tier.memory, MEDIA[tier.name]
        self._tokens, self._gpu_tokens = block_tokens, replica.core.kv.block_size
        self._known: dict[Hashable, tuple[Hashable, ...]] = {}  # reported blocks: keys of the GPU blocks in each
        tier.memory.on_gone = self._gone

    @classmethod
    def of(cls, replica: Any, tier: Tier, block_tokens: int) -> Reports | None:
        """Return the reports of a replica's tier, or None if it is shared or of an unknown kind."""
        return None if tier.shared or tier.name not in MEDIA else cls(replica, tier, block_tokens)

    def coming(self, request: Request, keys: Sequence[Hashable], room: Room, ready_ns: int) -> None:
        """Report blocks of a request that were added, once they are ready. `keys`: its blocks from the first on."""
        if request.content is None or not room.added:
            return
        numbers = {key: number for number, key in enumerate(keys)}
        blocks = [(numbers[key], key) for key in room.keys]
        self._clock.background += 1
        self._clock.at(ready_ns, LOADED, partial(self._ready, request, blocks))

    def _ready(self, request: Request, blocks: Sequence[tuple[int, Hashable]], event: Event) -> None:
        self._clock.background -= 1
        if self._replica.core is not self._core:
            return  # its process has crashed since
        for number, key in blocks:
            block = self._memory.get(key)
            if block is not None and block.ready_ns <= self._clock.ns:  # else it was dropped since
                self._stored(request, number, key)

    def _stored(self, request: Request, number: int, key: Hashable) -> None:
        content, size = request.content, self._gpu_tokens
        assert content is not None
        first = number * self._tokens // size  # the GPU block that contains its first token, or begins with it
        last = (number + 1) * self._tokens // size
        ends = range((first + 1) * size, last * size + 1, size)
        own = tuple(key_of(content.prefix_key(end), request.salt) for end in ends)
        parent = key_of(content.prefix_key(first * size), request.salt) if first else None
        if own:
            self._known[key] = own
            self._core.kv.on_event(BlockStored(own, parent, size, content, first * size, self._medium))

    def _gone(self, keys: Sequence[Hashable]) -> None:
        for key in keys:
            own = self._known.pop(key, None)
            if own is not None:
                self._core.kv.on_event(BlockRemoved(own, self._medium))
