"""Blocks that a request in lockstep reuses when they slide out of its windows.

If a request takes a block for each group in the same turn in which each of its windows gives one back, it keeps its
blocks and takes one more: the group before each window's group takes the block that the window gives back, and the last
group takes the new block. The dealt blocks are recorded by rank, and entered in the tables when the tables are read.
"""

from __future__ import annotations

from array import array

from servesim.contracts.request import Request
from servesim.engine.fast.kv.lockstep_tables import Rank
from servesim.policies.kv._block_tables import WIDTH, ids
from servesim.policies.kv.hybrid import NULL, Hybrid, nulls


class Member:
    """A request in lockstep."""

    __slots__ = ("begun", "number", "offset", "past", "request", "tables", "told", "turn")

    def __init__(self, request: Request, number: int, offset: int, begun: int, tables: list[array[int]]) -> None:
        self.request = request
        self.number = number  # position among all that have joined, i.e. batch order
        self.offset = offset
        self.begun = begun  # its windows move once more than this many turns are committed
        self.tables = tables
        self.told = request.content is not None
        self.past: list[int] = []  # number of blocks behind each window, as entered in its table
        self.turn = -1  # last turn processed as a new member


Ranked = dict[Request, Member]


class Rotation:
    """Ranks in which all members rotate their blocks: the first group attends to all tokens, and all other groups have
    windows."""

    def __init__(self, kv: Hybrid, windows: list[tuple[int, int]]) -> None:
        self._kv = kv
        self._size = kv.block_size
        self._windows = windows  # (group, tokens attended before the current)
        self.possible: bool = (
            kv.params.free_order == "front" and kv.windows[0] is None and len(windows) == len(kv.windows) - 1 > 0
        )
        """Whether requests can rotate blocks at all."""
        self.dealt: dict[int, Rank] = {}
        """Blocks dealt to the members of each rank, by rank key."""

    def begin(self, key: int, rank: Ranked, committed: int) -> Rank | None:
        """Start recording the blocks dealt to a rank if all its members rotate their blocks, given the turns
        committed."""
        if not self.possible or not all(self.ripe(member, committed) for member in rank.values()):
            return None
        dealt = self.dealt[key] = Rank()
        for request in rank:
            dealt.join(request)
        return dealt

    def ripe(self, member: Member, committed: int) -> bool:
        """Return whether, given the turns committed, a member from now on gives back a block of each window whenever it
        takes blocks, and none of these blocks can still be found in the cache or is held by others."""
        kv, processed = self._kv, committed + member.offset
        member.past = [(processed - reach) // self._size for _, reach in self._windows]
        if member.told or min(member.past) < 0:
            return False
        if not kv._key_of and not kv._extra:
            return True
        for (group, _), past in zip(self._windows, member.past, strict=True):
            blocks = member.tables[group][past:]
            if not (kv._key_of.keys().isdisjoint(blocks) and kv._extra.keys().isdisjoint(blocks)):
                return False
        return True

    def deal(self, dealt: Rank) -> None:
        """Deal one block to each member of a rank."""
        dealt.rounds.append(self._kv._take(dealt.size).tobytes())
        self._kv._table_blocks += dealt.size * len(self._windows)

    def deal_run(self, turn: int, k: int) -> list[tuple[int, int]]:
        """Deal blocks for k turns in which all members rotate theirs. Return (turn from 1, blocks dealt in that
        turn)."""
        bs, kv = self._size, self._kv
        due: list[Rank] = []
        rounds: list[tuple[int, int]] = []
        for i in sorted([(-key - turn) % bs for key in self.dealt]):
            if i < k:
                rank = self.dealt[-(turn + i) % bs]
                due.append(rank)
                rounds.append((i + 1, rank.size))
        rounds = [(i + later, n) for later in range(0, k, bs) for i, n in rounds if i + later <= k]
        total = sum([n for _, n in rounds])
        blocks = kv._take(total).tobytes()
        kv._table_blocks += total * len(self._windows)
        at = 0
        for each, (_, n) in enumerate(rounds):
            due[each % len(due)].rounds.append(blocks[at : at + n * WIDTH])
            at += n * WIDTH
        return rounds

    def leave(self, key: int, member: Member) -> None:
        """Remove a member from its rank and complete its tables."""
        dealt = self.dealt.get(key)
        if dealt is None:
            return
        self._enter(member, ids(dealt.leave(member.request)))
        if not dealt.size:
            del self.dealt[key]

    def _enter(self, member: Member, dealt: array[int]) -> None:
        """Enter in a member's tables the blocks dealt to it, one block per round."""
        tables, past, rounds = member.tables, member.past, len(dealt)
        if len(past) == 1:
            first = past[0]
            table = tables[1]
            table += dealt
            tables[0].extend(table[first : first + rounds])
            table[first : first + rounds] = nulls(rounds)
            past[0] = first + rounds
            return
        for block in dealt:
            released = [block]
            for i, first in enumerate(past):
                released.append(tables[i + 1][first])
                tables[i + 1][first] = NULL
                past[i] = first + 1
            for table in tables:
                table.append(released.pop())

    def complete(self, member: Member) -> None:
        """Complete the tables of a member."""
        dealt = self.dealt.get(member.offset % self._size)
        if dealt is not None:
            self._enter(member, ids(dealt.collect(member.request)))

    def end(self, members: Ranked) -> None:
        """Complete the tables of all members, and stop recording dealt blocks."""
        for member in members.values():
            self.complete(member)
        self.dealt.clear()
