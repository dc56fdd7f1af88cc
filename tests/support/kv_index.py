"""What a router that listens to prefix caches knows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from servesim.contracts import Request
from servesim.contracts.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, key_of


class BlockIndex:
    """The blocks of each replica, by key, with how many copies there are; and all that it was told."""

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self._block_size = block_size
        self._lookahead = lookahead
        self._copies: dict[int, Counter[Hashable]] = {}
        self.told: list[tuple[int, int, KVEvent]] = []

    def on_event(self, replica: int, ns: int, event: KVEvent) -> None:
        """Take in what a replica tells."""
        self.told.append((replica, ns, event._replace(content=None) if isinstance(event, BlockStored) else event))
        copies = self._copies.setdefault(replica, Counter())
        if isinstance(event, BlockStored):
            assert event.block_size == self._block_size
            assert event.parent is None or copies[event.parent], "a block behind one that is not there"
            copies.update(event.keys)
        elif isinstance(event, BlockRemoved):
            for key in event.keys:
                assert copies[key] > 0, "a block is removed that was not there"
                copies[key] -= 1
        else:
            assert isinstance(event, AllBlocksCleared)
            copies.clear()

    def cached_tokens(self, replica: int, request: Request) -> int:
        """Return the tokens from the start of a request that a replica has, short of its last one."""
        assert request.content is not None
        copies, size, ahead = self._copies.get(replica, Counter()), self._block_size, self._lookahead
        end = 0
        while end + size + max(ahead, 1) <= request.num_tokens:
            if not copies[key_of(request.content.prefix_key(end + size + ahead), request.salt)]:
                break
            end += size
        return end

    def num_copies(self, replica: int) -> Counter[Hashable]:
        """Return how many copies of each block a replica has."""
        return self._copies.get(replica, Counter())
