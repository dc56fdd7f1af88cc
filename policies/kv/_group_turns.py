"""Requests in lockstep whose groups of layers have tables of their own.

In a turn a request that has filled its last block takes one for each group, and one whose window has moved on by a block
gives one back, in batch order. Tables are kept up to date: in turn after turn the same requests do so, a block later.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter, itemgetter

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Request
from servesim.engine.fast.memory import LockstepMemory

from ._growth import most_rounds
from .hybrid import NULL, Hybrid


class Member:
    """A request in lockstep."""

    __slots__ = ("begun", "number", "offset", "request", "tables", "told", "turn")

    def __init__(self, request: Request, number: int, offset: int, begun: int, tables: list[array[int]]) -> None:
        self.request = request
        self.number = number  # among all that ever joined: the order of the batch
        self.offset = offset
        self.begun = begun  # its windows move once more turns than these are committed
        self.tables = tables
        self.told = request.content is not None
        self.turn = -1  # the last one that it had a part in as a new member


_NUMBER = attrgetter("number")
Ranked = dict[Request, Member]


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupTurns(LockstepMemory):
    """Tables of groups of layers of requests that grow together."""

    def __init__(self, kv: Hybrid) -> None:
        super().__init__()
        self._kv = kv
        self._size = kv.block_size
        self._groups = self.copies = len(kv.windows)
        self._windows = [(group, window - 1) for group, window in enumerate(kv.windows) if window is not None]
        self._shifts = sorted({reach % self._size for _, reach in self._windows})
        self._ranks: dict[int, Ranked] = {}  # by offset modulo the block size, each in batch order
        self._new: Ranked = {}  # those whose windows have still to catch up
        self._joined = 0
        self._entered = -1  # the last in batch order that was ever in a rank
        self._committed = 0  # turns committed when the last one was planned
        self._lag = -1  # turns in flight when the last one was planned; -1: none was
        self._told = 0  # members whose content others may ask for
        self._recycles: bool = kv.params.free_order == "front"
        self._ahead: bool = kv.params.hash_lookahead_tokens > 0  # blocks are known by more than they hold

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        tables = self._kv._tables[request]
        slots = len(tables[0]) * self._size
        if self._ahead or not num_tokens <= slots < num_tokens + self._size:
            return False
        begun = num_tokens - offset - 1 - request._num_output_placeholders
        member = self._new[request] = Member(request, self._joined, offset, begun, tables)
        self._joined += 1
        self._told += member.told
        return True

    def leave(self, request: Request, offset: int) -> None:
        member = self._new.pop(request, None)
        if member is None:
            key = offset % self._size
            member = self._ranks[key].pop(request)
            if not self._ranks[key]:
                del self._ranks[key]
            self._kv._slid[request] = self._committed + offset
        self._told -= member.told
        self._publish(member)

    def extend(self, turn: int, committed: int) -> bool:
        due = len(self._ranks.get(-turn % self._size, ()))
        due += sum([(turn + member.offset) % self._size == 0 for member in self._new.values()])
        if due * self._groups > self._kv.num_free_blocks():
            return False
        self._turn(turn, committed)
        return True

    def only_takes(self) -> bool:
        """Return whether each member takes a block for every group whenever its windows give some back: those of whole
        blocks, with one turn in flight when the next is planned."""
        return not self._new and self._lag == 1 and self._shifts in ([], [self._size - 1])

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        bs, groups = self._size, self._groups
        free = self._kv.num_free_blocks() - -(-reserve // bs)
        if free < 0 or limit <= 0:
            return 0
        n = len(self._new) + sum([len(rank) for rank in self._ranks.values()])
        if n * groups * -(-limit // bs) <= free:
            return limit
        counts = {key: len(rank) for key, rank in self._ranks.items()}
        for member in self._new.values():
            key = member.offset % bs
            counts[key] = counts.get(key, 0) + 1
        cycles, free = divmod(free, n * groups)  # what windows give back is not counted on
        for steps in range(bs):
            free -= groups * counts.get(-(turn + steps) % bs, 0)
            if free < 0:
                return min(cycles * bs + steps, limit)
        return limit

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        bs, kv = self._size, self._kv
        grown: list[tuple[int, int]] = []
        self.given_back = []
        for i in range(k):
            before, held = kv.num_free_blocks(), kv._table_blocks
            self._turn(turn + i, committed + i)
            taken, net = kv._table_blocks - held, before - kv.num_free_blocks()
            if net:
                grown.append((i + 1, net * bs))
            if taken > net:
                self.given_back.append((i + 1, (taken - net) * bs))
        return grown

    def _turn(self, turn: int, committed: int) -> None:
        """Let every member that has to take or give back blocks in this turn."""
        before, self._committed, self._lag = self._committed, committed, turn - committed
        behind = not self._new or next(iter(self._new.values())).number > self._entered
        if committed > before + 1 or not behind:
            self._catch_up(turn, before, committed)
        else:
            takes = self._ranks.get(-turn % self._size)
            slides = self._sliding(committed) if committed > before else []
            if slides or takes:
                self._trade(turn, takes, slides, committed)
        if self._new:
            self._begin(turn, committed)
        if self._told:
            for member in self._ranks.get((-committed - 1) % self._size, {}).values():
                if member.told:
                    self._publish(member)

    def _sliding(self, committed: int) -> list[Ranked]:
        """Return the ranks some of whose windows move when a turn is committed."""
        ranks = [self._ranks.get((shift - committed) % self._size) for shift in self._shifts]
        return [rank for rank in ranks if rank]

    def _trade(self, turn: int, takes: Ranked | None, slides: list[Ranked], committed: int) -> None:
        """Let a rank take blocks, and the windows of others (or the same) give some back."""
        if takes and not slides:
            self._take(takes)
        elif takes is slides[0] and len(self._shifts) == 1 and self._recycles:
            self._exchange(takes, committed)
        else:
            due = dict(takes or {})
            for rank in slides:
                due |= rank
            for member in sorted(due.values(), key=_NUMBER):
                self._grow(member, turn, committed - 1 + member.offset, committed + member.offset)

    def _take(self, rank: Ranked) -> None:
        """Let all members of a rank take a block for each group."""
        blocks = self._kv._take(len(rank) * self._groups)
        at = 0
        for member in rank.values():
            for table in member.tables:
                table.append(blocks[at])
                at += 1

    def _exchange(self, rank: Ranked, committed: int) -> None:
        """Let all members of a rank give back what slides out of their windows, and take a block for each group: what
        the same request has just given back, the last one first, unless it stays findable or others hold it."""
        kv, size, groups = self._kv, self._size, self._groups
        cached, extra = kv._key_of, kv._extra
        if len(rank) * groups > kv.num_free_blocks():  # then what one gives back another may need
            for member in rank.values():
                self._grow(member, -member.offset, committed - 1 + member.offset, committed + member.offset)
            return
        if len(self._windows) > 1:
            self._exchange_several(rank, committed)
            return
        group, reach = self._windows[0]
        given: list[int] = []
        for member in rank.values():
            last = (committed + member.offset - reach) // size - 1
            block = NULL
            if last >= 0:
                table = member.tables[group]
                block = table[last]
                table[last] = NULL
                if block in cached or block in extra:
                    self._part_with(block)
                    block = NULL
            given.append(block)
        recycled = len(given) - given.count(NULL)
        more = kv._take(len(rank) * groups - recycled)
        kv._table_blocks += recycled
        at = 0
        for member, block in zip(rank.values(), given, strict=True):
            for table in member.tables:
                if block:
                    table.append(block)
                    block = NULL
                else:
                    table.append(more[at])
                    at += 1

    def _exchange_several(self, rank: Ranked, committed: int) -> None:
        """Do as `_exchange` where several groups have a window, all moving at once; there are blocks for all."""
        kv = self._kv
        given: list[list[int]] = []
        for member in rank.values():
            released: list[int] = []
            for group, reach in self._windows:
                table, last = member.tables[group], (committed + member.offset - reach) // self._size - 1
                if last >= 0:
                    block = table[last]
                    table[last] = NULL
                    if block in kv._key_of or block in kv._extra:
                        self._part_with(block)
                    else:
                        released.append(block)
            given.append(released)
        recycled = sum([len(released) for released in given])
        more = kv._take(len(rank) * self._groups - recycled)
        kv._table_blocks += recycled
        at = 0
        for member, released in zip(rank.values(), given, strict=True):
            for table in member.tables:
                if released:
                    table.append(released.pop())
                else:
                    table.append(more[at])
                    at += 1

    def _part_with(self, block: int) -> None:
        """Release a block that stays findable, or that others hold."""
        if block not in self._kv._extra or not self._kv._still_held(block):
            self._kv._idle[block] = None

    def _grow(self, member: Member, turn: int, before: int, processed: int) -> None:
        """Do as `Hybrid.grow` for one token, `before` having been processed at the last turn."""
        kv, request = self._kv, member.request
        if member.told:
            kv._offer(request, processed, processed)
        kv._slid[request] = before
        kv._slide(request, processed)
        if (turn + member.offset) % self._size == 0:
            for table in member.tables:
                table += kv._take(1)

    def _catch_up(self, turn: int, before: int, committed: int) -> None:
        """Do a turn request by request, the new ones where they stand in the batch."""
        keys = {-turn % self._size}
        for done in range(max(before, committed - self._size) + 1, committed + 1):
            keys |= {(shift - done) % self._size for shift in self._shifts}
        due = [member for key in sorted(keys) for member in self._ranks.get(key, {}).values()]
        for member in sorted([*due, *self._new.values()], key=_NUMBER):
            if member.request in self._new:
                self._grow_new(member, turn, committed)
            else:
                self._grow(member, turn, before + member.offset, committed + member.offset)
        if self._told and committed > before + 1:
            for rank in self._ranks.values():
                for member in rank.values():
                    if member.told:
                        self._publish(member)

    def _begin(self, turn: int, committed: int) -> None:
        """Let new members do their turn, behind the others unless it is done, and join these once their windows have
        caught up."""
        for request, member in list(self._new.items()):
            if member.turn != turn:
                self._grow_new(member, turn, committed)
            if committed >= member.begun:
                del self._new[request]
                self._enter(member)

    def _grow_new(self, member: Member, turn: int, committed: int) -> None:
        member.turn = turn
        self._grow(member, turn, self._kv._slid[member.request], max(committed, member.begun) + member.offset)

    def _enter(self, member: Member) -> None:
        """Let a member whose windows have caught up join its rank."""
        key = member.offset % self._size
        rank = self._ranks.setdefault(key, {})
        rank[member.request] = member
        self._entered = max(self._entered, member.number)
        if len(rank) > 1 and list(rank.values())[-2].number > member.number:
            self._ranks[key] = {each.request: each for each in sorted(rank.values(), key=_NUMBER)}

    def _publish(self, member: Member) -> None:
        """Offer what a member knew when the last turn was planned: it is final."""
        known = self._committed + member.offset + 1
        self._kv._offer(member.request, known, known)

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        kv, bs = self._kv, self._size
        if self._ahead:
            return 0
        held = [len(kv._tables[request][0]) for request in requests]

        def needed(k: int) -> int:
            ends = [min(known[k - 1] + ahead, kv.max_model_len) for known in tokens]
            return sum([max((end + bs - 1) // bs - have, 0) for end, have in zip(ends, held, strict=True)])

        return most_rounds(needed, kv.num_free_blocks() // self._groups, limit)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        kv, bs = self._kv, self._size
        due: list[tuple[int, Request, int]] = []  # (round, request, tokens it knows then)
        for request, known in zip(requests, tokens, strict=True):
            rounds = set(self._rounds_taking(request, known, ahead, k))
            slid = kv._slid[request]
            for _, reach in self._windows:
                first = max(slid - reach, 0) // bs + 1
                for block in range(first, max(known[k - 1] - 1 - reach, 0) // bs + 1):
                    rounds.add(bisect_left(known, block * bs + reach + 1))
            due += [(i, request, known[i]) for i in sorted(rounds)]
        due.sort(key=itemgetter(0))
        grown: dict[int, int] = {}
        given: dict[int, int] = {}
        for i, request, known_then in due:
            if request.content is not None:
                kv._offer(request, known_then - 1, known_then - 1)
            before, tables = kv.num_free_blocks(), kv._tables[request]
            kv._slide(request, known_then - 1)
            freed = kv.num_free_blocks() - before
            more = kv._blocks(min(known_then + ahead, kv.max_model_len)) - len(tables[0])
            if more > 0:
                for table in tables:
                    table += kv._take(more)
            grown[i + 1] = grown.get(i + 1, 0) + (max(more, 0) * self._groups - freed) * bs
            given[i + 1] = given.get(i + 1, 0) + freed * bs
        for request, known in zip(requests, tokens, strict=True):
            kv._slid[request] = max(known[k - 1] - 1, kv._slid[request])
            kv._offer(request, known[k - 1], known[k - 1])
        self.given_back = list(given.items())
        return list(grown.items())

    def _rounds_taking(self, request: Request, known: Sequence[int], ahead: int, k: int) -> list[int]:
        """Return the rounds (from 0) in which a request needs further blocks."""
        bs, kv = self._size, self._kv
        blocks, rounds = len(kv._tables[request][0]), []
        most = min(kv._blocks(known[k - 1] + ahead), kv._blocks(kv.max_model_len))
        while blocks < most:
            i = bisect_right(known, blocks * bs - ahead)
            blocks = min(kv._blocks(known[i] + ahead), kv._blocks(kv.max_model_len))
            rounds.append(i)
        return rounds
