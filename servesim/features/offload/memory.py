"""Host memory as a cache of KV blocks, keyed by content: which blocks are there, and the order of eviction (vLLM 0.19
to 0.33: vllm/v1/kv_offload, lru and arc).

A block that is being written or read is never evicted. Times are in ns; a block is idle from the exact instant at which
its copy ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from servesim.contracts.request import Request, State

NEVER_READY: Final = 1 << 62
"""Placeholder for the end of a copy that is not known yet."""


@dataclass(slots=True, eq=False)
class Block:
    """A block in host memory."""

    ready_ns: int
    """Time at which its content becomes available."""
    read_until: int = 0
    """Time at which the last copy from the block ends."""
    writer: Request | None = None
    """The request that must end or be preempted before the content can be found; None if it can be found as soon as it
    is available."""
    writer_preemptions: int = 0
    """Number of preemptions of the writer at the time of the write."""

    def ready(self, now: int) -> bool:
        """Return whether the block can be read."""
        if self.ready_ns > now:
            return False
        writer = self.writer
        return writer is None or writer.state >= State.FINISHED or writer.num_preemptions > self.writer_preemptions

    def idle(self, now: int) -> bool:
        """Return whether the block may be dropped."""
        return self.read_until <= now and self.ready(now)


class Room(NamedTuple):
    """Blocks that were added to host memory and are yet to be written."""

    keys: Sequence[Hashable]
    blocks: list[Block]
    """A block for each key, or one for all."""
    added: int
    """Number of keys."""
    dropped: int
    """Number of blocks that were dropped to make room."""


class HostMemory(ABC):
    """The blocks in host memory, and their order of eviction."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.pins: list[Collection[Hashable]] = []
        """Keys that must stay, a collection for each connector that keeps any."""
        self.on_gone: Callable[[Sequence[Hashable]], None] | None = None
        """Callback for blocks that were dropped, or None for no callback."""

    @abstractmethod
    def get(self, key: Hashable) -> Block | None:
        """Return the block with this content, if there is one."""

    @abstractmethod
    def touch(self, keys: Sequence[Hashable], now: int, count: int | None = None) -> None:
        """Record a lookup of these keys, or of the first `count`, given in the order of the prompt, so that the
        prompt's first block is evicted last. `keys` may only ever grow at its end."""

    @abstractmethod
    def insert(self, key: Hashable, block: Block) -> None:
        """Add a block that is not there yet."""

    @abstractmethod
    def remove(self, key: Hashable) -> None:
        """Remove a block that is there and was never complete."""

    @abstractmethod
    def evict(self, count: int, keep: Collection[Hashable], now: int) -> Sequence[Hashable] | None:
        """Drop `count` idle blocks, none of them in `keep`; return their keys. Return None and drop nothing if there
        are too few."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of blocks."""

    def find(self, keys: Sequence[Hashable], now: int) -> int:
        """Return how many of the keys, from the first, can be read."""
        for i, key in enumerate(keys):
            block = self.get(key)
            if block is None or not block.ready(now):
                return i
        return len(keys)

    def prepare(self, keys: Sequence[Hashable], now: int) -> Room | None:
        """Make room for the missing keys without dropping what is pinned, and add them; their blocks are not ready
        until the caller sets a time. Return None and change nothing if there is no room."""
        if len(keys) > self.num_blocks:
            return None  # without a look at each key: none of them may go for another
        missing = [key for key in keys if self.get(key) is None]
        dropped = self._make_room(len(missing), keys, now)
        if dropped is None:
            return None
        blocks = [Block(NEVER_READY) for _ in missing]
        for key, block in zip(missing, blocks, strict=True):
            self.insert(key, block)
        return Room(missing, blocks, len(missing), dropped)

    def _make_room(self, count: int, keys: Sequence[Hashable], now: int) -> int | None:
        """Drop as many blocks as must go for `count` new ones, none of them in `keys`; return how many, or None if
        there are too few."""
        short = len(self) + count - self.num_blocks
        if short <= 0:
            return 0
        gone = self.evict(short, {*keys}.union(*self.pins), now)
        if gone is None:
            return None
        if self.on_gone is not None:
            self.on_gone(gone)
        return short

    def store(self, keys: Sequence[Hashable], first: int, stop: int, now: int) -> Room | None:
        """Do as `prepare` does for keys `first` to `stop` of a prompt, and record a lookup of all before `stop` if any
        is added. `keys` may only ever grow at its end."""
        room = self.prepare(keys[first:stop], now)
        if room is not None and room.added:
            self.touch(keys, now, stop)
        return room

    def store_each(self, blocks: list[tuple[Sequence[Hashable], int]], now: int) -> tuple[list[Block], int] | None:
        """Do as `store` does for blocks one by one, told by their prompts and numbers, at `now` or at any times from
        then on: return what was added, and how many were dropped. Return None and change nothing if that might depend
        on the times. Default: always."""
        return None

    def read(self, keys: Sequence[Hashable], until: int) -> None:
        """Record that the blocks with these keys are read until a given time."""
        for key in keys:
            block = self.get(key)
            assert block is not None
            block.read_until = max(block.read_until, until)


def idle(entries: Mapping[Hashable, Block], keep: Collection[Hashable], now: int) -> Iterator[Hashable]:
    """Yield the keys of blocks that may be evicted, in order."""
    return (key for key, block in entries.items() if block.idle(now) and key not in keep)


class Arc(HostMemory):
    """Adaptive replacement (Megiddo and Modha, FAST 2003), as in vLLM: blocks requested once and blocks requested again
    have separate lists; requests for dropped blocks determine the maximum length of the first list."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._once: OrderedDict[Hashable, Block] = OrderedDict()
        self._again: OrderedDict[Hashable, Block] = OrderedDict()
        self._gone_once: OrderedDict[Hashable, None] = OrderedDict()
        self._gone_again: OrderedDict[Hashable, None] = OrderedDict()
        self._target = 0.0  # target length of the seen-once list

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def get(self, key: Hashable) -> Block | None:
        return self._once.get(key) or self._again.get(key)

    def touch(self, keys: Sequence[Hashable], now: int, count: int | None = None) -> None:
        for key in reversed(keys[:count]):
            if key in self._once:
                block = self._once.pop(key)
                (self._again if block.ready(now) else self._once)[key] = block
            elif key in self._again:
                self._again.move_to_end(key)
            elif key in self._gone_once:
                more = max(1.0, len(self._gone_again) / len(self._gone_once))
                self._target = min(self._target + more, self.num_blocks)
                self._gone_once.move_to_end(key)
            elif key in self._gone_again:
                less = max(1.0, len(self._gone_once) / len(self._gone_again))
                self._target = max(self._target - less, 0.0)
                self._gone_again.move_to_end(key)

    def insert(self, key: Hashable, block: Block) -> None:
        self._once[key] = block
        self._gone_once.pop(key, None)
        self._gone_again.pop(key, None)

    def remove(self, key: Hashable) -> None:
        del (self._once if key in self._once else self._again)[key]

    def evict(self, count: int, keep: Collection[Hashable], now: int) -> list[Hashable] | None:
        once, again = idle(self._once, keep, now), idle(self._again, keep, now)
        left = len(self._once)
        going: list[tuple[Hashable, bool]] = []
        while len(going) < count:
            key = next(once, None) if left >= int(self._target) else None
            if key is not None:
                left -= 1
                going.append((key, True))
            elif (key := next(again, None)) is not None:
                going.append((key, False))
            else:
                return None
        for key, first in going:
            del (self._once if first else self._again)[key]
            (self._gone_once if first else self._gone_again)[key] = None
        for gone in (self._gone_once, self._gone_again):
            while len(gone) > self.num_blocks:
                gone.popitem(last=False)
        return [key for key, _ in going]
