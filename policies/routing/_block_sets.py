"""Record of which replicas have which prompt blocks, for routers that count by blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.kv_events import key_of
from servesim.contracts.request import Request
from servesim.workload.content import RunContent


def block_keys(request: Request, block_size: int) -> Sequence[Hashable]:
    """Return the keys of a prompt's full blocks, as KV events report them, or no keys if its content is not known."""
    content, ends = request.content, range(block_size, request.prompt_len + 1, block_size)
    if content is None:
        return ()
    if isinstance(content, RunContent) and not request.salt:
        return content.prefix_keys(ends)
    return [key_of(content.prefix_key(end), request.salt) for end in ends]


class BlockSets:
    """Sets of blocks by replica. A block may be added to a set several times, and stays until it has been discarded as
    many times."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}  # one bit per replica that has the block
        self._copies: dict[tuple[int, Hashable], int] = {}  # number of copies, if more than one
        self.sizes: dict[int, int] = {}
        """Number of distinct blocks at each replica."""

    def add(self, replica: int, keys: Iterable[Hashable]) -> None:
        """Add blocks to a replica's set."""
        holders, bit, new = self._holders, 1 << replica, 0
        for key in keys:
            mask = holders.get(key, 0)
            if mask & bit:
                self._copies[replica, key] = self._copies.get((replica, key), 1) + 1
            else:
                holders[key] = mask | bit
                new += 1
        self.sizes[replica] = self.sizes.get(replica, 0) + new

    def discard(self, replica: int, keys: Iterable[Hashable]) -> None:
        """Remove one copy of each block; ignore blocks that are not in the set."""
        holders, bit, gone = self._holders, 1 << replica, 0
        for key in keys:
            mask = holders.get(key, 0)
            if not mask & bit:
                continue
            copies = self._copies.pop((replica, key), 1)
            if copies > 2:
                self._copies[replica, key] = copies - 1
            if copies > 1:
                continue
            gone += 1
            if mask == bit:
                del holders[key]
            else:
                holders[key] = mask ^ bit
        self.sizes[replica] = self.sizes.get(replica, 0) - gone

    def clear(self, replica: int) -> None:
        """Remove all blocks of a replica."""
        bit = 1 << replica
        self._holders = {key: mask & ~bit for key, mask in self._holders.items() if mask & ~bit}
        self._copies = {key: copies for key, copies in self._copies.items() if key[0] != replica}
        self.sizes[replica] = 0

    def has(self, replica: int, key: Hashable) -> bool:
        """Return whether a replica has a block."""
        return bool(self._holders.get(key, 0) >> replica & 1)

    def holders(self, key: Hashable) -> int:
        """Return the replicas that have a block, one bit each."""
        return self._holders.get(key, 0)

    def leading_at(self, replica: int, keys: Sequence[Hashable]) -> int:
        """Return how many leading blocks a replica has without a gap."""
        holders, bit = self._holders, 1 << replica
        for length, key in enumerate(keys):
            if not holders.get(key, 0) & bit:
                return length
        return len(keys)

    def leading(self, keys: Sequence[Hashable], num_replicas: int) -> NDArray[np.int64]:
        """Return for each replica how many leading blocks it has without a gap."""
        lengths = np.zeros(num_replicas, np.int64)
        self._follow(keys, 0, (1 << num_replicas) - 1, lengths)
        return lengths

    def continued(self, keys: Sequence[Hashable], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each replica up to which block it has all blocks of a prompt from block `starts` on."""
        ends = starts.copy()
        for start in np.unique(starts).tolist():
            here = np.packbits(starts == start, bitorder="little").tobytes()
            self._follow(keys, start, int.from_bytes(here, "little"), ends)
        return ends

    def _follow(self, keys: Sequence[Hashable], start: int, alive: int, ends: NDArray[np.int64]) -> None:
        """Enter in `ends`, for the replicas in `alive` (one bit each), the first block from `start` on that each
        lacks."""
        holders, num_replicas = self._holders, len(ends)
        for i in range(start, len(keys)):
            here = holders.get(keys[i], 0) & alive
            if here != alive:
                ends[members(alive ^ here, num_replicas)] = i
                alive = here
                if not alive:
                    return
        ends[members(alive, num_replicas)] = len(keys)

    def found(self, keys: Sequence[Hashable], num_replicas: int) -> NDArray[np.int64]:
        """Return for each replica how many of the blocks before the first that no replica has are in its set."""
        counts = np.zeros(num_replicas, np.int64)
        same = [self._holders.get(key, 0) for key in keys]
        for mask, run in groupby(same):
            if not mask:
                break
            counts[members(mask, num_replicas)] += sum(1 for _ in run)
        return counts


def members(mask: int, num_replicas: int) -> NDArray[np.bool_]:
    """Return for each replica whether its bit is set."""
    bits = np.frombuffer(mask.to_bytes((num_replicas + 7) // 8, "little"), np.uint8)
    return np.unpackbits(bits, count=num_replicas, bitorder="little").view(np.bool_)
