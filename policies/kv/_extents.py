"""Cached blocks as extents: runs of blocks that continue one content, are held by the same requests, and were freed
together.

What happens to a run of blocks happens to its extent, once: it is entered, found, held, released into the free queue,
and given up from its end. Only where the blocks of a run part company (a hit ends inside, some are evicted) is it split
or cut. So a prompt costs one operation per run of its content; block ids move as slices of lists.
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
    """Blocks `start` to `stop` of a prompt, and what they hold."""

    __slots__ = ("after", "before", "blocks", "found", "holders", "key", "rest", "start", "stop")

    def __init__(self, key: Hashable, start: int, blocks: array[int], holders: int) -> None:
        self.key = key
        """With the number of a block in its prompt, the identity of everything up to that block's end."""
        self.start = start
        self.stop = start + len(blocks)
        self.blocks = blocks
        """Their ids."""
        self.holders = holders
        """Number of requests that hold all of them; at 0 the extent is in the free queue."""
        self.found = False
        """Whether it is found by its content."""
        self.rest: Extent | None = None
        """The extent last split off its end: for a request that held both, this extent still means both."""
        self.before: Extent | None = None
        self.after: Extent | None = None
        """Its neighbours in the free queue."""

    def parts(self, stop: int) -> list[Extent]:
        """Return the parts this extent has become up to block `stop`, for a request that held or found it before."""
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
    """Extents no request holds, the least recently freed first. The last block of each goes first."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._ends = ends = Extent(None, 0, ids(), 0)  # behind the last one and before the first
        ends.before = ends.after = ends

    def __iter__(self) -> Iterator[Extent]:
        extent = self._ends.after
        while extent is not None and extent is not self._ends:
            yield extent
            extent = extent.after

    def first(self) -> Extent:
        """Return the extent to be given up next."""
        extent = self._ends.after
        if extent is None or extent is self._ends:
            raise IndexError("no block is free")
        return extent

    def append(self, extent: Extent) -> None:
        """Append an extent that no request holds anymore."""
        self.num_blocks += extent.stop - extent.start
        self.link(extent, self._ends)

    def link(self, extent: Extent, after: Extent) -> None:
        """Put blocks that are counted here before some that are in the queue."""
        before = after.before
        assert before is not None
        extent.before, extent.after = before, after
        before.after = after.before = extent

    def remove(self, extent: Extent) -> None:
        """Remove an extent that is held again or given up."""
        self.num_blocks -= extent.stop - extent.start
        before, after = extent.before, extent.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        extent.before = extent.after = None

    def cut(self, extent: Extent, n: int) -> array[int]:
        """Give up the last n blocks of a longer extent, the last one foremost."""
        blocks = extent.blocks[: -n - 1 : -1]
        del extent.blocks[-n:]
        extent.stop -= n
        self.num_blocks -= n
        return blocks


class ContentIndex:
    """Extents by what they hold. Those of one content that do not overlap make a layer, in order; of several blocks
    with the same content, the first one entered is in the topmost layer."""

    def __init__(self) -> None:
        self._layers: dict[Hashable, list[list[Extent]]] = {}

    def __iter__(self) -> Iterator[Extent]:
        """Yield all extents, each behind those entered before it for the same content."""
        for layers in self._layers.values():
            for layer in layers:
                yield from layer

    def find(self, key: Hashable, block: int, stop: int) -> tuple[Extent, int] | None:
        """Return the extent that was the first to hold a block of a content, and up to which block, at most `stop`,
        that is so; None if there is none."""
        for layer in self._layers.get(key, ()):
            at = bisect_right(layer, block, key=_START)
            if at and layer[at - 1].stop > block:
                return layer[at - 1], min(layer[at - 1].stop, stop)
            if at < len(layer):
                stop = min(layer[at].start, stop)
        return None

    def add(self, extent: Extent) -> None:
        """Enter an extent, below all that hold some of the same content."""
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
        """Return whether nothing else of its content is here."""
        layers = self._layers[extent.key]
        return len(layers) == 1 and len(layers[0]) == 1

    def split(self, extent: Extent, rest: Extent) -> None:
        """Enter `rest`, which was split off an extent that is here."""
        layer, at = self._place(extent)
        self._layers[extent.key][layer].insert(at + 1, rest)
        rest.found = True

    def remove(self, extent: Extent) -> None:
        """Remove an extent, which will hold something else."""
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
        """Raise AssertionError where an invariant is broken."""
        for key, layers in self._layers.items():
            assert layers, "a content without extents"
            for layer in layers:
                assert layer, "an empty layer"
                assert all(extent.key == key for extent in layer), "an extent under another's content"
                assert all(a.stop <= b.start for a, b in pairwise(layer)), "extents of a layer overlap"

    def _place(self, extent: Extent) -> tuple[int, int]:
        """Return the layer of an extent, and its index there."""
        for i, layer in enumerate(self._layers[extent.key]):
            at = bisect_left(layer, extent.start, key=_START)
            if at < len(layer) and layer[at] is extent:
                return i, at
        raise KeyError(extent.key)
