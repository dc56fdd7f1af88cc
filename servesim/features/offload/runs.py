"""Blocks of host memory as runs of consecutive ones, and the lookups that they belong to."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from servesim.engine.content_keys import Keys
from servesim.features.offload.memory import Block

Span = tuple[int, int, Block]
"""(number of the first block, number after the last one, what is known of each)."""
_FIRST = itemgetter(0)


@dataclass(slots=True, eq=False)
class Lookup:
    """The first `stop` blocks of a prompt, looked up together."""

    keys: Sequence[Hashable]
    at: int
    """Number of lookups before."""
    stop: int = 0
    runs: list[Run] = field(default_factory=list)
    """That it reaches into, in order."""


@dataclass(slots=True, eq=False)
class Run:
    """The blocks of one run of content (servesim.engine.content_keys.Keys); for keys in a list, one block, numbered 0,
    is a run."""

    key: Hashable
    spans: list[Span] = field(default_factory=list)
    """Blocks that are there, in order."""
    lookups: dict[Lookup, int] = field(default_factory=dict)
    """Number after the last block that each lookup covers: it covers those before, too."""

    def own(self, lookup: Lookup) -> int:
        """Return the number of the first block that belongs to a lookup, if there is one below the last it covers."""
        first, stop, at = 0, self.lookups[lookup], lookup.at
        for other, covered in reversed(self.lookups.items()):
            if covered > first and other.at > at:
                first = covered
                if first >= stop:
                    break
        return first

    def idle(self, lookup: Lookup, keep: Collection[Hashable], now: int) -> tuple[list[tuple[int, int]], bool]:
        """Return which blocks of a lookup may go, the last ones first, and whether others of its blocks stay."""
        found, stays, own, covered = list[tuple[int, int]](), False, self.own(lookup), self.lookups[lookup]
        for first, stop, block in reversed(self.spans):
            if stop <= own:
                break
            first, stop = max(first, own), min(stop, covered)
            if first >= stop:
                continue
            if not block.idle(now):
                stays = True
            elif not keep:
                found.append((first, stop))
            elif isinstance(keep, Keys):
                before, after = next(((a, b) for key, a, b in keep.runs if key == self.key), (stop, stop))
                found += [(a, b) for a, b in ((max(first, after), stop), (first, min(stop, before))) if a < b]
                stays = stays or (before < stop and after > first)
            else:
                kept = {i for i, key in enumerate(self.keys(first, stop)) if key in keep}
                stays = stays or bool(kept)
                found += [(stop - i - 1, stop - i) for i in range(stop - first) if i not in kept]
        return found, stays

    def keys(self, first: int, stop: int) -> Sequence[Hashable]:
        """Return the keys of some blocks, the last one first."""
        return range(self.key + stop - 1, self.key + first - 1, -1) if isinstance(self.key, int) else [self.key]

    def add(self, first: int, stop: int, block: Block, now: int) -> None:
        """Add blocks that are not there."""
        spans = self.spans
        if spans and spans[-1][1] > first:
            insort(spans, (first, stop, block), key=_FIRST)
            return
        while len(spans) > 1 and spans[0][1] == spans[1][0] and spans[0][2].idle(now) and spans[1][2].idle(now):
            one, other = spans[0][2], spans[1][2]
            both = Block(max(one.ready_ns, other.ready_ns), max(one.read_until, other.read_until))
            spans[:2] = [(spans[0][0], spans[1][1], both)]
        spans.append((first, stop, block))

    def cut(self, first: int, stop: int, block: Block | None = None) -> None:
        """Remove some blocks, or put another one in the place of each."""
        spans, last = self.spans, self.spans[-1]
        if block is None and stop == last[1] and first >= last[0]:
            spans.pop()
            if first > last[0]:
                spans.append((last[0], first, last[2]))
            return
        left: list[Span] = []
        for a, b, each in spans:
            if b <= first or a >= stop:
                left.append((a, b, each))
                continue
            if a < first:
                left.append((a, first, each))
            if block is not None:
                left.append((max(a, first), min(b, stop), block))
            if b > stop:
                left.append((stop, b, each))
        self.spans = left


def runs_within(keys: Sequence[Hashable], first: int, stop: int) -> Sequence[tuple[Any, int, int]]:
    """Return the runs of keys `first` to `stop` of a prompt, each with the numbers of its first block and after its
    last one."""
    if not isinstance(keys, Keys):
        return [(key, 0, 1) for key in keys[first:stop]]
    runs = keys.runs
    if runs and first >= runs[-1][1]:
        return [(runs[-1][0], first, stop)] if first < stop else []
    return [(key, max(a, first), min(b, stop)) for key, a, b in runs if a < stop and b > first]


def runs_of(keys: Sequence[Hashable]) -> Sequence[tuple[Any, int, int]]:
    """Return the runs of keys from anywhere in a prompt."""
    return keys.runs if isinstance(keys, Keys) else [(key, 0, 1) for key in keys]


def keys_of(going: list[tuple[Run, int, int]]) -> Sequence[Hashable]:
    """Return the keys of blocks, told by their runs and numbers there, the last ones of each first."""
    return [key for run, first, stop in going for key in run.keys(first, stop)]
