"""Record of which replicas have which prompt blocks, for routers that count by blocks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

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

    def leading(self, keys: Sequence[Hashable], num_replicas: int) -> list[int]:
        """Return for each replica how many leading blocks it has without a gap."""
        lengths = [0] * num_replicas
        alive = (1 << num_replicas) - 1
        length = 0
        for key in keys:
            here = self._holders.get(key, 0) & alive
            lost = alive ^ here
            while lost:
                lowest = lost & -lost
                lengths[lowest.bit_length() - 1] = length
                lost ^= lowest
            alive = here
            if not alive:
                return lengths
            length += 1
        for replica in range(num_replicas):
            if alive >> replica & 1:
                lengths[replica] = length
        return lengths

    def continued(self, keys: Sequence[Hashable], starts: Sequence[int]) -> list[int]:
        """Return for each replica up to which block it has all blocks of a prompt from block `starts` on."""
        holders, ends = self._holders, list(starts)
        for replica in range(len(ends)):
            while ends[replica] < len(keys) and holders.get(keys[ends[replica]], 0) >> replica & 1:
                ends[replica] += 1
        return ends

    def found(self, keys: Sequence[Hashable], num_replicas: int) -> list[int]:
        """Return for each replica how many of the blocks before the first that no replica has are in its set."""
        counts = [0] * num_replicas
        for key in keys:
            here = self._holders.get(key, 0)
            if not here:
                break
            while here:
                lowest = here & -here
                counts[lowest.bit_length() - 1] += 1
                here ^= lowest
        return counts
