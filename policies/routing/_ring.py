"""A ring for consistent hashing: each replica has 150 points, and a key maps to the next point clockwise."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

VIRTUAL_NODES = 150
"""Points per replica on the ring: smg, model_gateway/src/worker/hash_ring.rs."""


class HashRing:
    """Ring of replicas, by index. The original hashes URLs with BLAKE3; hashing indices with BLAKE2b gives other
    positions with the same statistics."""

    def __init__(self, num_replicas: int) -> None:
        self._places: list[tuple[int, int]] = []
        self._count = 0
        self.grow(num_replicas)

    def grow(self, num_replicas: int) -> None:
        """Add replicas up to an index."""
        new = range(self._count, num_replicas)
        if not new:
            return
        self._places += [(_place(f"replica-{i}#{k}"), i) for i in new for k in range(VIRTUAL_NODES)]
        self._places.sort()
        self._count = num_replicas

    def find(self, key: str, choices: Collection[int]) -> int:
        """Return the first replica in `choices` clockwise from a key's position."""
        start = bisect_left(self._places, (_place(key), -1))
        for i in range(len(self._places)):
            _, replica = self._places[(start + i) % len(self._places)]
            if replica in choices:
                return replica
        raise ValueError("no replica is eligible")


@lru_cache(maxsize=65_536)
def _place(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "little")
