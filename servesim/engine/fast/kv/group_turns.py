"""Requests in lockstep that have a separate block table for each group of layers.

In a turn, in batch order, a request that has filled its last block takes one block for each group, and a request whose
window has advanced by a block gives one back. With asynchronous scheduling and windows of whole blocks, both happen in
the same turn: a request reuses the blocks that it has just given back, and takes one more. The dealt blocks are then
only recorded, and they are entered in the tables when the tables are read.
"""

from __future__ import annotations

from operator import attrgetter

from mypy_extensions import mypyc_attr

from servesim.contracts.request import Request
from servesim.engine.fast.kv.group_rounds import GroupRounds
from servesim.engine.fast.kv.rotation import Member, Ranked, Rotation
from servesim.policies.kv.hybrid import NULL, Hybrid

_NUMBER = attrgetter("number")


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupTurns(GroupRounds):
    """Per-group block tables of requests that grow together."""

    def __init__(self, kv: Hybrid) -> None:
        super().__init__(kv)
        self._shifts = sorted({reach % self._size for _, reach in self._windows})
        self._ranks: dict[int, Ranked] = {}  # by offset modulo the block size; each in batch order
        self._ranked: Ranked = {}  # members of all ranks
        self._rotation = Rotation(kv, self._windows)
        self._new: Ranked = {}  # members whose windows must still catch up
        self._joined = 0
        self._entered = -1  # last member in batch order that has joined a rank
        self._committed = 0  # turns committed when the last turn was planned
        self._lag = -1  # turns in flight when the last turn was planned; -1 if none was
        self._told = 0  # number of members whose content others may look up
        self._recycles: bool = kv.params.free_order == "front"

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
            del self._ranked[request]
            self._rotation.leave(key, member)
            if not self._ranks[key]:
                del self._ranks[key]
            self._kv._slid[request] = self._committed + offset
        self._told -= member.told
        self._publish(member)
        # Turns may have ended since the last turn for which memory was extended.
        done = request._num_computed_tokens - request._num_output_placeholders
        self._kv._offer(request, done, done)

    def extend(self, turn: int, committed: int) -> bool:
        due = len(self._ranks.get(-turn % self._size, ()))
        due += sum([(turn + member.offset) % self._size == 0 for member in self._new.values()])
        if due * self._groups > self._kv.num_free_blocks():
            return False
        self._turn(turn, committed)
        return True

    def only_takes(self) -> bool:
        """Return whether each member takes a block for every group whenever its windows give some back. This is the
        case for windows of whole blocks with one turn in flight when the next is planned."""
        return not self._new and self._lag == 1 and self._shifts in ([], [self._size - 1])

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        bs, groups = self._size, self._groups
        free = self._kv.num_free_blocks() - -(-reserve // bs)
        if free < 0 or limit <= 0:
            return 0
        n = len(self._new) + len(self._ranked)
        if n * groups * -(-limit // bs) <= free:
            return limit
        counts = {key: len(rank) for key, rank in self._ranks.items()}
        for member in self._new.values():
            key = member.offset % bs
            counts[key] = counts.get(key, 0) + 1
        cycles, free = divmod(free, n * groups)  # not counting blocks that windows give back
        for steps in range(bs):
            free -= groups * counts.get(-(turn + steps) % bs, 0)
            if free < 0:
                return min(cycles * bs + steps, limit)
        return limit

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        bs, kv = self._size, self._kv
        grown: list[tuple[int, int]] = []
        given: list[tuple[int, int]] = []
        for i in range(k):
            if self._all_rotate(turn + i, committed + i):
                for later, n in self._rotation.deal_run(turn + i, k - i):
                    grown.append((i + later, n * bs))
                    given.append((i + later, n * (len(self._windows) - self._groups + self.copies) * bs))
                self._committed = committed + k - 1
                break
            before, held = kv.num_free_blocks(), kv._table_blocks
            self._turn(turn + i, committed + i)
            taken = (kv._table_blocks - held) // self._groups * self.copies
            net = before - kv.num_free_blocks()
            if net:
                grown.append((i + 1, net * bs))
            if taken != net:
                given.append((i + 1, (taken - net) * bs))
        self.given_back = given
        return grown

    def _all_rotate(self, turn: int, committed: int) -> bool:
        """Return whether all members rotate their blocks, including those of the next turn."""
        steady = self.only_takes() and len(self._rotation.dealt) == len(self._ranks)
        return steady and turn == committed + 1 == self._committed + 2

    def _turn(self, turn: int, committed: int) -> None:
        """Take and give back blocks for each member that is due in this turn."""
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
        """Return the ranks in which some windows move when a turn is committed."""
        ranks = [self._ranks.get((shift - committed) % self._size) for shift in self._shifts]
        return [rank for rank in ranks if rank]

    def _trade(self, turn: int, takes: Ranked | None, slides: list[Ranked], committed: int) -> None:
        """Take blocks for one rank, and give back blocks from the windows of other ranks (or the same one)."""
        if takes and not slides:
            self._rotation.end(self._ranked)
            self._take(takes)
        elif takes and takes is slides[0] and len(self._shifts) == 1 and self._recycles:
            self._exchange(takes, turn, committed)
        else:
            self._rotation.end(self._ranked)
            due = dict(takes or {})
            for rank in slides:
                due |= rank
            for member in sorted(due.values(), key=_NUMBER):
                self._grow(member, turn, committed - 1 + member.offset, committed + member.offset)

    def _take(self, rank: Ranked) -> None:
        """Take a block for each group for all members of a rank."""
        blocks = self._kv._take(len(rank) * self._groups)
        at = 0
        for member in rank.values():
            for table in member.tables:
                table.append(blocks[at])
                at += 1

    def _exchange(self, rank: Ranked, turn: int, committed: int) -> None:
        """Give back the blocks that slide out of the windows of all members of a rank, and take a block for each group.
        A member reuses the blocks it has just given back, the last one first, unless they can still be found in the
        cache or others hold them."""
        kv, size, groups, key = self._kv, self._size, self._groups, -turn % self._size
        dealt, n = self._rotation.dealt.get(key), len(rank)
        if dealt is None and not self._told:
            dealt = self._rotation.begin(key, rank, committed - 1)
        if dealt is not None and n <= kv.num_free_blocks():
            self._rotation.deal(dealt)
            return
        if dealt is not None:
            self._rotation.end(self._ranked)
        if n * groups > kv.num_free_blocks():  # one may then need what another gives back
            for member in rank.values():
                self._grow(member, turn, committed - 1 + member.offset, committed + member.offset)
            return
        cached, extra = kv._key_of, kv._extra
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

    def complete(self, request: Request) -> None:
        """Complete the tables of a request."""
        member = self._ranked.get(request)
        if member is not None:
            self._rotation.complete(member)

    def complete_all(self) -> None:
        """Complete all tables."""
        for member in self._ranked.values():
            self._rotation.complete(member)

    def _exchange_several(self, rank: Ranked, committed: int) -> None:
        """Do the same as `_exchange` if several groups have windows, which all move together, and there are enough
        blocks for all."""
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
        """Release a block that can still be found in the cache or that other requests hold."""
        if block not in self._kv._extra or not self._kv._still_held(block):
            self._kv._idle[block] = None

    def _grow(self, member: Member, turn: int, before: int, processed: int) -> None:
        """Do the same as `Hybrid.grow` for one token; `before` tokens had been processed by the last turn."""
        kv, request = self._kv, member.request
        if member.told:
            kv._offer(request, processed, processed)
        kv._slid[request] = before
        kv._slide(request, processed)
        if (turn + member.offset) % self._size == 0:
            for table in member.tables:
                table += kv._take(1)

    def _catch_up(self, turn: int, before: int, committed: int) -> None:
        """Process a turn request by request, with new members in their batch positions."""
        self._rotation.end(self._ranked)
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
        """Process the turn of new members (after the others) unless it has been done, and enter them in their ranks
        once their windows have caught up."""
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
        """Enter a member whose windows have caught up in its rank."""
        key = member.offset % self._size
        dealt, between = self._rotation.dealt.get(key), member.number < self._entered
        if between or (dealt is not None and not self._rotation.ripe(member, self._committed)):
            self._rotation.end(self._ranked)  # for the others, since this one was dealt nothing
            dealt = None
        rank = self._ranks.setdefault(key, {})
        rank[member.request] = self._ranked[member.request] = member
        self._entered = max(self._entered, member.number)
        if between:
            self._ranks[key] = {each.request: each for each in sorted(rank.values(), key=_NUMBER)}
        elif dealt is not None:
            dealt.join(member.request)

    def _publish(self, member: Member) -> None:
        """Publish the tokens that a member knew when the last turn was planned, since they are now final."""
        known = self._committed + member.offset + 1
        self._kv._offer(member.request, known, known)
