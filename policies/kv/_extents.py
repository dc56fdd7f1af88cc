"""Cached blocks as extents: runs of consecutive blocks of one content that are held by the same requests, and were
freed together.

Each operation on a run of blocks applies to its extent once: it is entered, found, held, released into the free queue,
and evicted from its end. An extent is split or cut only when its blocks diverge (a hit ends inside it, or some blocks
are evicted). So a prompt costs one operation per run of its content, and block ids move as list slices.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from itertools import pairwise
from operator import attrgetter

from ._block_tables import ids

_START = attrgetter("start")


class Extent:
    """Blocks `start` to `stop` of a prompt, and their content."""

    __slots__ = ("after", "before", "blocks", "found", "holders", "key", "rest", "start", "stop")

    def __init__(self, key: Hashable, start: int, blocks: array[int], holders: int) -> None:
        self.key = key
        """Key that, together with a block's number in its prompt, identifies everything up to that block's end."""
        self.start = start
        self.stop = start + len(blocks)
        self.blocks = blocks
        """Ids of the blocks."""
        self.holders = holders
        """Number of requests that hold all of the blocks; at 0 the extent is in the free queue."""
        self.found = False
        """Whether the extent can be found by its content."""
        self.rest: Extent | None = None
        """Extent last split off the end of this one; for a request that held both, this extent still stands for
        both."""
        self.before: Extent | None = None
        self.after: Extent | None = None
        """Neighbors of the extent in the free queue."""

    def parts(self, stop: int) -> list[Extent]:
        """Return the parts into which this extent has been split, up to block `stop`, for a request that held or found
        it before."""
        extent, parts = self, [self]
        while extent.stop < stop:
            assert extent.rest is not None
            extent = extent.rest
            parts.append(extent)
        return parts

    def split(self, at: int) -> Extent:
        """Keep the blocks before `at`; return the others."""
        kept = at - self.start
        rest = Extent(self.key, at, self.blocks[kept:], self.holders)
        del self.blocks[kept:]
        self.stop = at
        rest.rest, self.rest = self.rest, rest
        return rest


class FreeQueue:
    """Extents that no request holds, least recently freed first. Within each extent, the last block is evicted
    first."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._ends = ends = Extent(None, 0, ids(), 0)  # sentinel between the last and the first
        ends.before = ends.after = ends

    def __iter__(self) -> Iterator[Extent]:
        extent = self._ends.after
        while extent is not None and extent is not self._ends:
            yield extent
            extent = extent.after

    def first(self) -> Extent:
        """Return the extent to evict next."""
        extent = self._ends.after
        if extent is None or extent is self._ends:
            raise IndexError("no block is free")
        return extent

    def append(self, extent: Extent) -> None:
        """Append an extent that no request holds anymore."""
        self.num_blocks += extent.stop - extent.start
        self.link(extent, self._ends)

    def link(self, extent: Extent, after: Extent) -> None:
        """Insert an extent, whose blocks are already counted, in front of `after` in the queue."""
        before = after.before
        assert before is not None
        extent.before, extent.after = before, after
        before.after = after.before = extent

    def remove(self, extent: Extent) -> None:
        """Remove an extent that is held again or evicted."""
        self.num_blocks -= extent.stop - extent.start
        before, after = extent.before, extent.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        extent.before = extent.after = None

    def cut(self, extent: Extent, n: int) -> array[int]:
        """Evict the last n blocks of a longer extent, the last one first."""
        blocks = extent.blocks[: -n - 1 : -1]
        del extent.blocks[-n:]
        extent.stop -= n
        self.num_blocks -= n
        return blocks


class ContentIndex:
    """Extents by content. Non-overlapping extents of the same content form an ordered layer; of several blocks with the
    same content, the first one entered is in the topmost layer."""

    def __init__(self) -> None:
        self._layers: dict[Hashable, list[list[Extent]]] = {}

    def __iter__(self) -> Iterator[Extent]:
        """Yield all extents, each after those entered before it for the same content."""
        for layers in self._layers.values():
            for layer in layers:
                yield from layer

    def find(self, key: Hashable, block: int, stop: int) -> tuple[Extent, int] | None:
        """Return the first extent entered that holds a given block of a content, and the block (at most `stop`) up to
        which this is true, or None if there is no such extent."""
        for layer in self._layers.get(key, ()):
            at = bisect_right(layer, block, key=_START)
            if at and layer[at - 1].stop > block:
                return layer[at - 1], min(layer[at - 1].stop, stop)
            if at < len(layer):
                stop = min(layer[at].start, stop)
        return None

    def add(self, extent: Extent) -> None:
        """Add an extent below all extents that overlap it in the same content."""
        extent.found = True
        layers = self._layers.get(extent.key)
        if layers is None:
            self._layers[extent.key] = [[extent]]
            return
        depth = 0
        for i, layer in enumerate(layers, 1):
            at = bisect_left(layer, extent.stop, key=_START)
            if at and layer[at - 1].stop > extent.start:
                depth = i
        if depth == len(layers):
            layers.append([extent])
        else:
            insort(layers[depth], extent, key=_START)

    def alone(self, extent: Extent) -> bool:
        """Return whether the extent is the only one with its content."""
        layers = self._layers[extent.key]
        return len(layers) == 1 and len(layers[0]) == 1

    def split(self, extent: Extent, rest: Extent) -> None:
        """Insert `rest`, which was split off an extent in the index."""
        layer, at = self._place(extent)
        self._layers[extent.key][layer].insert(at + 1, rest)
        rest.found = True

    def remove(self, extent: Extent) -> None:
        """Remove an extent, whose blocks are about to be reused."""
        layers = self._layers[extent.key]
        layer, at = self._place(extent)
        del layers[layer][at]
        if not layers[layer]:
            del layers[layer]
            if not layers:
                del self._layers[extent.key]

    def clear(self) -> None:
        """Forget all extents."""
        self._layers.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for key, layers in self._layers.items():
            assert layers, "a content has no extents"
            for layer in layers:
                assert layer, "an empty layer"
                assert all(extent.key == key for extent in layer), "an extent is listed under a different content"
                assert all(a.stop <= b.start for a, b in pairwise(layer)), "extents of a layer overlap"

    def _place(self, extent: Extent) -> tuple[int, int]:
        """Return the layer of an extent, and its index within the layer."""
        for i, layer in enumerate(self._layers[extent.key]):
            at = bisect_left(layer, extent.start, key=_START)
            if at < len(layer) and layer[at] is extent:
                return i, at
        raise KeyError(extent.key)
