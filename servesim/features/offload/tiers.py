"""Memory for KV beyond the GPU, and the links to it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

from servesim.features.offload.memory import Block, HostMemory, Room

if TYPE_CHECKING:
    from servesim.features.offload.reports import Reports

NANO = 1_000_000_000
MOST_GAPS = 1_000
"""Number of gaps that a channel remembers. Transfers begin at most a few steps after now, so that older gaps are past;
a channel that is hardly ever idle has fewer."""


class Channel:
    """Bandwidth that several replicas share in one direction: transfers run one after the other, each in the first gap
    after the time at which it can start that is long enough."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.busy_ns = 0
        """Total time of the transfers."""
        self._begins: list[int] = []  # of busy periods, in order
        self._ends: list[int] = []

    def copy(self, num_bytes: int, after_ns: int) -> int:
        """Reserve a transfer at or after a time; return when it is done, in ns."""
        ns = -(-num_bytes * NANO // self.bytes_per_s)
        self.busy_ns += ns
        begins, ends = self._begins, self._ends
        i = bisect_right(ends, after_ns)  # the first period that ends later
        begin = after_ns
        while i < len(begins) and begins[i] < begin + ns:
            begin = ends[i]
            i += 1
        end = begin + ns
        joins_last, joins_next = i > 0 and ends[i - 1] == begin, i < len(begins) and begins[i] == end
        if joins_last and joins_next:
            ends[i - 1] = ends[i]
            del begins[i], ends[i]
        elif joins_last:
            ends[i - 1] = end
        elif joins_next:
            begins[i] = begin
        else:
            begins.insert(i, begin)
            ends.insert(i, end)
            if len(begins) > MOST_GAPS:
                ends[0] = ends[1]
                del begins[1], ends[1]
                begins[0] = 0
        return end


@dataclass
class Direction:
    """Copies in one direction, one after the other; all GPUs of the replica copy their shares in parallel."""

    bytes_per_s: int
    start_ns: int
    channel: Channel | None = None
    """Channel that they pass, too, and share with other replicas: a copy is done when it is through both."""
    gpus: int = 1
    """GPUs whose shares pass the channel."""
    free_ns: int = 0
    """Time at which all copies are done."""
    busy_ns: int = 0
    """Total time of the copies, without waiting for the channel."""
    factor: float = 1.0
    """Divisor of the bandwidth of copies that begin from now on."""

    def copy(self, num_bytes: int, after_ns: int) -> int:
        """Begin a copy of `num_bytes` of each GPU at or after a time; return when it is done, in ns."""
        rate = self.bytes_per_s if self.factor == 1 else max(round(self.bytes_per_s / self.factor), 1)
        ns = self.start_ns - (-num_bytes * NANO // rate)
        self.busy_ns += ns
        begin = max(self.free_ns, after_ns)
        self.free_ns = begin + ns
        if self.channel is not None:
            through = self.channel.copy(num_bytes * self.gpus, begin + self.start_ns)
            self.free_ns = max(self.free_ns, through)
        return self.free_ns


@dataclass
class Tier:
    """Memory of one kind, and the links from and to it: host memory is linked to the GPU, other tiers of the same
    connector to host memory. Several replicas may share the memory."""

    name: str
    memory: HostMemory
    reading: Direction
    writing: Direction
    most: int = 0
    """Peak number of blocks held."""
    shared: bool = False
    """Whether other replicas use it, too, so that it outlives the process of this one."""
    networked: bool = False
    """Whether it is reached over the network."""
    reports: Reports | None = None
    """Reports on its blocks, if there are listeners to KV events."""
    _coming: list[tuple[Hashable, Block]] = field(default_factory=list)  # blocks on their way to shared memory

    def enter(self, room: Room, ready_ns: int, now: int) -> None:
        """Take blocks that become ready at a given time."""
        for block in room.blocks:
            block.ready_ns = ready_ns
        if self.shared:
            self._coming = [each for each in self._coming if each[1].ready_ns > now]
            self._coming.extend(zip(room.keys, cycle(room.blocks)))
        self.most = max(self.most, len(self.memory))

    def crashed(self, now: int) -> None:
        """Remove what this replica was writing to shared memory; what was written stays."""
        for key, block in self._coming:
            if block.ready_ns > now and self.memory.get(key) is block:
                self.memory.remove(key)
        self._coming.clear()
