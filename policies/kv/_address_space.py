"""Contiguous memory: the free holes of an address space, and placement of new chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


class AddressSpace(ABC):
    """Addresses 0 to size, allocated in chunks."""

    def __init__(self, size: int) -> None:
        self.size = size

    def chunk(self, n: int) -> int:
        """Return the size of the chunk that holds n addresses."""
        return n

    @property
    def largest(self) -> int:
        """Size of the largest possible chunk."""
        return self.size

    @abstractmethod
    def holes(self) -> Iterator[tuple[int, int]]:
        """Yield the (start, size) of each hole."""

    @abstractmethod
    def find(self, chunk: int) -> int | None:
        """Return the start that a chunk would get, or None if it fits nowhere."""

    @abstractmethod
    def take(self, chunk: int) -> int:
        """Allocate a chunk and return its start. Call only after `find`."""

    @abstractmethod
    def give(self, start: int, chunk: int) -> None:
        """Free a chunk and merge it with adjacent free space."""

    @abstractmethod
    def compacted(self, chunks: Mapping[K, tuple[int, int]]) -> tuple[AddressSpace, dict[K, int]]:
        """Return a space with the (start, size) chunks packed as densely as possible, and their new starts."""

    def unusable(self, chunk: int) -> int:
        """Return the number of free addresses in holes too small for a chunk."""
        return sum(size for _, size in self.holes() if size < chunk)


class Stretches(AddressSpace):
    """Chunks of any size, placed in the first hole that is large enough or in the smallest one (the first if tied)."""

    def __init__(self, size: int, best: bool = False) -> None:
        super().__init__(size)
        self._best = best
        self._holes = [(0, size)]

    def holes(self) -> Iterator[tuple[int, int]]:
        return iter(self._holes)

    def find(self, chunk: int) -> int | None:
        fitting = ((size if self._best else 0, start) for start, size in self._holes if size >= chunk)
        return min(fitting, default=(0, None))[1]

    def take(self, chunk: int) -> int:
        start = self.find(chunk)
        assert start is not None
        i = bisect_left(self._holes, (start, 0))
        size = self._holes[i][1]
        self._holes[i : i + 1] = [(start + chunk, size - chunk)] if size > chunk else []
        return start

    def give(self, start: int, chunk: int) -> None:
        i = bisect_left(self._holes, (start, 0))
        first, last, end = i, i, start + chunk
        if i < len(self._holes) and self._holes[i][0] == end:
            end += self._holes[i][1]
            last += 1
        if i and sum(self._holes[i - 1]) == start:
            start = self._holes[i - 1][0]
            first -= 1
        self._holes[first:last] = [(start, end - start)]

    def compacted(self, chunks: Mapping[K, tuple[int, int]]) -> tuple[AddressSpace, dict[K, int]]:
        """Slide all chunks down, keeping their order."""
        space = Stretches(self.size, self._best)
        space._holes, starts, end = [], {}, 0
        for key in sorted(chunks, key=lambda k: chunks[k]):
            starts[key] = end
            end += chunks[key][1]
        if end < self.size:
            space._holes = [(end, self.size - end)]
        return space, starts


class Buddies(AddressSpace):
    """Chunks whose sizes are powers of two: free chunks are halved until one fits, and merged with their buddies again
    when freed. A space whose size is not a power of two begins as one chunk per set bit of its size, the largest
    first."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._free: list[list[int]] = [[] for _ in range(size.bit_length())]  # starts by order, ascending
        start = 0
        for order in reversed(range(size.bit_length())):
            if size >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    def chunk(self, n: int) -> int:
        return 1 << (n - 1).bit_length()

    @property
    def largest(self) -> int:
        return 1 << (self.size.bit_length() - 1)

    def holes(self) -> Iterator[tuple[int, int]]:
        return ((start, 1 << order) for order, starts in enumerate(self._free) for start in starts)

    def find(self, chunk: int) -> int | None:
        order = self._order(chunk)
        return self._free[order][0] if order is not None else None

    def take(self, chunk: int) -> int:
        order = self._order(chunk)
        assert order is not None
        start = self._free[order].pop(0)
        while 1 << order > chunk:
            order -= 1
            self._free[order].insert(0, start + (1 << order))  # was empty: every smaller chunk was too small
        return start

    def give(self, start: int, chunk: int) -> None:
        order = chunk.bit_length() - 1
        while True:
            starts, buddy = self._free[order], start ^ 1 << order
            i = bisect_left(starts, buddy)
            if i == len(starts) or starts[i] != buddy:
                insort(starts, start)
                return
            del starts[i]
            start &= buddy
            order += 1

    def compacted(self, chunks: Mapping[K, tuple[int, int]]) -> tuple[AddressSpace, dict[K, int]]:
        """Place the largest chunks first, and equal ones in address order. This wastes nothing, since each size divides
        the sizes before it."""
        space = Buddies(self.size)
        order = sorted(chunks, key=lambda k: (-chunks[k][1], chunks[k][0]))
        return space, {key: space.take(chunks[key][1]) for key in order}

    def _order(self, chunk: int) -> int | None:
        """Return the smallest order, large enough for the chunk, that has a free chunk."""
        return next((o for o in range(chunk.bit_length() - 1, len(self._free)) if self._free[o]), None)
