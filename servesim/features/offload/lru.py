"""Host memory that drops the least recently requested blocks first, and of those requested together the last one of the
prompt.

Blocks are kept as runs, and their order as that of lookups: a block belongs to the latest lookup that covers it, so a
lookup costs the same whatever its length.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any

from servesim.engine.content_keys import NUMBERS, Keys
from servesim.features.offload.memory import NEVER_READY, Block, HostMemory, Room
from servesim.features.offload.runs import Lookup, Run, keys_of, runs_of, runs_within

FEW = 256
"""Number of lookups from which on those that no block belongs to are forgotten."""


class Lru(HostMemory):
    """Eviction of the least recently requested blocks first. The same block is always asked for by the same kind of
    keys: in runs (Keys), or in a list, each a run of its own. No key is twice in a list."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._count = 0  # blocks that are there
        self._runs: dict[Hashable, Run] = {}
        self._order: OrderedDict[Lookup, None] = OrderedDict()
        self._latest: dict[int, Lookup] = {}  # that of each prompt, by the id of its keys
        self._num_lookups = 0
        self._forget_at = FEW

    def __len__(self) -> int:
        return self._count

    def get(self, key: Hashable) -> Block | None:
        run, number = self._place(key)
        spans = self._runs[run].spans if run in self._runs else ()
        return next((block for first, stop, block in spans if first <= number < stop), None)

    def _place(self, key: Hashable) -> tuple[Hashable, int]:
        """Return the run of a key and its number there."""
        if not isinstance(key, int) or key in self._runs:
            return key, 0
        run = key >> NUMBERS << NUMBERS
        return run, key - run

    def find(self, keys: Sequence[Hashable], now: int) -> int:
        found = 0
        for key, first, stop in runs_of(keys):
            run, at = self._runs.get(key), first
            for begin, end, block in run.spans if run is not None else ():
                if end > at:
                    if begin > at or not block.ready(now):
                        break
                    at = end
                    if at >= stop:
                        break
            if at < stop:
                return found + at - first
            found += stop - first
        return found

    def touch(self, keys: Sequence[Hashable], now: int, count: int | None = None) -> None:
        stop, lookup = len(keys) if count is None else count, self._latest.get(id(keys))
        if not stop:
            return
        if lookup is not None and stop < lookup.stop and self._has_any(keys, stop, lookup.stop):
            lookup = None  # the others keep their earlier place
        if lookup is None:
            lookup = self._latest[id(keys)] = Lookup(keys, self._num_lookups)
            self._order[lookup] = None
        else:
            lookup.at = self._num_lookups
            self._order.move_to_end(lookup)
        self._num_lookups += 1
        if lookup.stop != stop:
            self._cover(lookup, stop)
        if len(self._order) > self._forget_at:
            self._forget()

    def _has_any(self, keys: Sequence[Hashable], first: int, stop: int) -> bool:
        """Return whether any of keys `first` to `stop` of a prompt is there."""
        return any(
            begin < b and end > a
            for key, a, b in runs_within(keys, first, stop)
            if key in self._runs
            for begin, end, _ in self._runs[key].spans
        )

    def _cover(self, lookup: Lookup, stop: int) -> None:
        """Let a lookup cover the first `stop` blocks."""
        lookup.stop, runs = stop, lookup.runs
        if isinstance(lookup.keys, Keys):
            told = lookup.keys.runs
            while runs and told[len(runs) - 1][1] >= stop:
                self._uncover(lookup, runs.pop())
            if runs:
                last = told[len(runs) - 1][2]
                runs[-1].lookups[lookup] = last if last < stop else stop
            for key, first, last in told[len(runs) :]:
                if first >= stop:
                    break
                runs.append(run := self._run(key))
                run.lookups[lookup] = last if last < stop else stop
            return
        while len(runs) > stop:
            self._uncover(lookup, runs.pop())
        for one in lookup.keys[len(runs) : stop]:
            runs.append(run := self._run(one))
            run.lookups[lookup] = 1

    def _run(self, key: Hashable) -> Run:
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run(key)
        return run

    def _uncover(self, lookup: Lookup, run: Run) -> None:
        del run.lookups[lookup]
        if not run.lookups and not run.spans:
            self._runs.pop(run.key, None)

    def _forget(self) -> None:
        """Forget the lookups that no block belongs to."""
        for lookup in [each for each in self._order if not self._owns(each)]:
            self._drop(lookup)
        self._forget_at = 2 * len(self._order) + FEW

    def _owns(self, lookup: Lookup) -> bool:
        for run in lookup.runs:
            if run.spans and run.spans[-1][1] > run.own(lookup):
                first, stop = run.own(lookup), run.lookups[lookup]
                if any(begin < stop and end > first for begin, end, _ in run.spans):
                    return True
        return False

    def _drop(self, lookup: Lookup) -> None:
        del self._order[lookup]
        if self._latest.get(id(lookup.keys)) is lookup:
            del self._latest[id(lookup.keys)]
        for run in lookup.runs:
            self._uncover(lookup, run)

    def store(self, keys: Sequence[Hashable], first: int, stop: int, now: int) -> Room | None:
        if stop - first > self.num_blocks:
            return None
        missing = self._missing(keys, first, stop)
        if not missing:
            return Room((), [], 0, 0)
        count = sum([end - begin for _, begin, end in missing])
        dropped = self._make_room(count, keys[first:stop] if count < stop - first else (), now)
        if dropped is None:
            return None
        block = Block(NEVER_READY)
        for key, begin, end in missing:
            self._run(key).add(begin, end, block, now)
        self._count += count
        self.touch(keys, now, stop)
        added = Keys(missing) if isinstance(keys, Keys) else [key for key, _, _ in missing]
        return Room(added, [block], count, dropped)

    def store_each(self, blocks: list[tuple[Sequence[Hashable], int]], now: int) -> tuple[list[Block], int] | None:
        if self.pins or self.on_gone is not None:
            return None
        prompts: dict[int, tuple[Sequence[Hashable], int]] = {}  # by id: and after which block, in order of the last
        runs: dict[int, tuple[Hashable, int]] = {}  # that in which the blocks of each are, and the first of them
        for keys, number in blocks:
            if prompts.pop(id(keys), None) is None:
                if not isinstance(keys, Keys) or number < keys.runs[-1][1]:
                    return None
                runs[id(keys)] = keys.runs[-1][0], number
            prompts[id(keys)] = keys, number + 1
        latest: set[Lookup] = set()
        for prompt, (key, number) in runs.items():
            run, lookup = self._runs.get(key), self._latest.get(prompt)
            if lookup is None or lookup.stop < number or (run is not None and run.spans and run.spans[-1][1] > number):
                return None
            latest.add(lookup)
        short = max(self._count + len(blocks) - self.num_blocks, 0)
        if len({key for key, _ in runs.values()}) < len(runs):
            return None  # prompts that end alike
        if short and self._drop_idle(short, (), now, latest) is None:
            return None
        added: list[Block] = []
        for keys, number in blocks:
            added.append(block := Block(NEVER_READY))
            self._run(runs[id(keys)][0]).add(number, number + 1, block, now)
        self._count += len(blocks)
        for keys, stop in prompts.values():
            self.touch(keys, now, stop)
        return added, short

    def _missing(self, keys: Sequence[Hashable], first: int, stop: int) -> list[tuple[Any, int, int]]:
        """Return the runs of keys `first` to `stop` of a prompt that are not there."""
        missing: list[tuple[Any, int, int]] = []
        for key, a, b in runs_within(keys, first, stop):
            run = self._runs.get(key)
            if run is not None and run.spans and run.spans[-1][1] > a:
                for begin, end, _ in run.spans:
                    if begin >= b:
                        break
                    if end > a:
                        if begin > a:
                            missing.append((key, a, begin))
                        a = end
            if a < b:
                missing.append((key, a, b))
        return missing

    def _make_room(self, count: int, keys: Sequence[Hashable], now: int) -> int | None:
        short = self._count + count - self.num_blocks
        if short <= 0:
            return 0
        keep = keys if isinstance(keys, Keys) and not self.pins else {*keys}.union(*self.pins)
        going = self._drop_idle(short, keep, now)
        if going is not None and self.on_gone is not None:
            self.on_gone(keys_of(going))
        return None if going is None else short

    def read(self, keys: Sequence[Hashable], until: int) -> None:
        for key, first, stop in runs_of(keys):
            run = self._runs[key]
            for begin, end, block in [*run.spans]:
                if begin < stop and end > first:
                    later = replace(block, read_until=max(block.read_until, until))
                    run.cut(max(begin, first), min(end, stop), later)  # those not read stay idle

    def insert(self, key: Hashable, block: Block) -> None:
        self._run(key).add(0, 1, block, block.ready_ns)
        self._count += 1
        self.touch([key], 0)

    def remove(self, key: Hashable) -> None:
        key, number = self._place(key)
        self._runs[key].cut(number, number + 1)
        self._count -= 1

    def evict(self, count: int, keep: Collection[Hashable], now: int) -> Sequence[Hashable] | None:
        going = self._drop_idle(count, keep, now)
        return None if going is None else keys_of(going)

    def _drop_idle(
        self, count: int, keep: Collection[Hashable], now: int, after: Collection[Lookup] | None = None
    ) -> list[tuple[Run, int, int]] | None:
        """Do as `evict` does, but return runs of blocks. If `after` is given, return None, too, unless all that go
        now would be the first to go at any later time, and even if these lookups became the latest ones."""
        left, going, shorter = count, list[tuple[Run, int, int]](), list[tuple[Lookup, int]]()
        for lookup in self._order:
            if after is not None and lookup in after:
                return None
            stays, last = False, len(lookup.runs) - 1
            for i in range(last, -1, -1):
                run = lookup.runs[i]
                idle, stay = run.idle(lookup, keep, now)
                stays = stays or stay
                if stay and after is not None:
                    return None
                for first, stop in idle:
                    if stop - first < left:
                        going.append((run, first, stop))
                        left -= stop - first
                        continue
                    going.append((run, stop - left, stop))
                    if i < last and not stays:
                        shorter.append((lookup, stop - left if isinstance(lookup.keys, Keys) else i))
                    self._remove(going, shorter)
                    return going
            if not stays:
                shorter.append((lookup, 0))
        return None

    def _remove(self, going: list[tuple[Run, int, int]], shorter: list[tuple[Lookup, int]]) -> None:
        """Remove blocks, and let lookups cover only what is left of theirs."""
        for run, first, stop in going:
            run.cut(first, stop)
            self._count -= stop - first
        for lookup, stop in shorter:
            if stop:
                self._cover(lookup, stop)
            else:
                self._drop(lookup)
