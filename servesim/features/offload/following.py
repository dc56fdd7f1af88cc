"""Requests that decode together, as seen by a connector that stores their KV block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from servesim.contracts.connector import Together
from servesim.contracts.place import Counts
from servesim.contracts.request import Request

NEVER: Final = 1 << 62
Entry = tuple[int, Request]
"""(order of joining, member)."""
Due = tuple[int, int, Request, int]
"""(turn, order of joining, member, number of the block that it then knows)."""


class Following:
    """The members of a lockstep by the turn in which each has one more block to store, so that other turns cost
    nothing. A turn here is the number of turns committed when it is planned, except for `Together.turn`.

    `size`: tokens of a block. `most`: blocks of the memory. `stored`: first block not stored yet, by request. `store`
    is called with a member, the number of blocks that it knows, and the times at which the turn is planned and ends; if
    this leaves `stored` as it is, the attempt was refused, counted, and is repeated in every turn. `store_all` is
    called with the blocks of several turns, in order, the number of the first of these, the times at which turns are
    planned and end, and how many ends follow a plan; it stores all, or returns False and stores none.
    """

    def __init__(
        self,
        together: Together,
        size: int,
        most: int,
        stored: Mapping[Request, int],
        counts: Counts,
        store: Callable[[Request, int, int, int], None],
        store_all: Callable[[list[Due], int, Sequence[int], int], bool],
    ) -> None:
        self._together, self._size, self._most = together, size, most
        self._stored, self._counts, self._store, self._store_all = stored, counts, store, store_all
        self._due: list[tuple[int, int, Request]] = []  # a heap, by turn
        self._refused: list[Entry] = []
        self._hopeless: list[Entry] = []  # with more blocks to store than the memory has: always refused
        self._known = (0, 0)  # number of requests that had joined and left when members were last read

    def next(self, turn: int) -> int:
        """Return the first turn, from this one on, in which a store may succeed."""
        self._meet()
        return self._next(turn)

    def _next(self, turn: int) -> int:
        """Return the same if the members are known."""
        if self._refused:
            return turn
        return max(self._due[0][0], turn) if self._due else NEVER

    def run(self, first: int, count: int, ends: Sequence[int], depth: int) -> None:
        """Handle `count` turns from the first one on. Turn i of them, from 0, is planned at `ends[i]` and ends at
        `ends[i + depth]`."""
        self._meet()
        turn, stop = first, first + count
        if not self._refused:
            self._run_whole(first, stop, ends, depth)
        while (due := self._next(turn)) < stop:
            self._counts.refused += len(self._hopeless) * (due - turn)
            self._turn(due, ends[due - first], ends[due - first + depth], NEVER)
            turn = due + 1
        self._counts.refused += len(self._hopeless) * (stop - turn)

    def _run_whole(self, first: int, stop: int, ends: Sequence[int], depth: int) -> None:
        """Store the blocks of all turns at once, if that is possible."""
        due, members, size, stored = self._due, self._together.members, self._size, self._stored
        taken: list[tuple[int, int, Request]] = []
        then: list[tuple[int, int, Request]] = []
        stores: list[Due] = []
        regular = True
        while due and due[0][0] < stop:
            entry = heappop(due)
            turn, order, request = entry
            member = members.get(request)
            if member is None or request._order != order:
                continue  # it has left
            taken.append(entry)
            offset, _, begun = member
            turn, number = max(turn, first), stored.get(request, 0)
            blocks = (max(turn, begun) + offset + 1) // size - number
            if blocks not in (0, 1):
                regular = False
                break
            if not blocks:  # what it knew on joining was stored before
                turn = (number + 1) * size - offset - 1
            while turn < stop:
                stores.append((turn, order, request, number))
                number += 1
                turn = (number + 1) * size - offset - 1
            then.append((turn, order, request))
        stores.sort()
        done = regular and (not stores or self._store_all(stores, first, ends, depth))
        for entry in then if done else taken:
            heappush(due, entry)

    def turn(self, now: int, end_ns: int) -> None:
        """Handle the turn that has just been planned, which ends at `end_ns`."""
        together = self._together
        self._meet()
        self._turn(together.committed, now, end_ns, together.turn)

    def _turn(self, turn: int, now: int, end_ns: int, stop: int) -> None:
        """Handle one turn of the members that take part from a turn numbered below `stop` on."""
        self._counts.refused += len(self._hopeless)
        found, self._refused, due, members = self._refused, [], self._due, self._together.members
        later: list[tuple[int, int, Request]] = []
        while due and due[0][0] <= turn:
            entry = heappop(due)
            _, order, request = entry
            member = members.get(request)
            if member is None or request._order != order:
                continue  # it has left
            if member[1] < stop:
                found.append((order, request))
            else:
                later.append(entry)
        for entry in later:
            heappush(due, entry)
        if len(found) > 1:
            found.sort(key=_order)
        for order, request in found:
            offset, _, begun = members[request]
            known = ((turn if turn > begun else begun) + offset + 1) // self._size
            self._store(request, known, now, end_ns)
            stored = self._stored.get(request, 0)
            if stored >= known:
                heappush(due, ((stored + 1) * self._size - offset - 1, order, request))
            else:
                (self._hopeless if known - stored > self._most else self._refused).append((order, request))

    def _meet(self) -> None:
        """Add the members that have joined, and drop those that have left, since this was last done."""
        members, joined = self._together.members, self._together.num_joined
        before, left = self._known, joined - len(members)
        self._known = (joined, left)
        if left != before[1]:
            self._refused = [each for each in self._refused if self._follows(each)]
            self._hopeless = [each for each in self._hopeless if self._follows(each)]
        if joined != before[0]:
            for request in reversed(members):
                if request._order < before[0]:
                    break
                self._expect(request)

    def _follows(self, entry: Entry) -> bool:
        return entry[1]._order == entry[0] and entry[1] in self._together.members

    def _expect(self, request: Request) -> None:
        """Note the turn in which a member knows its next block: now, if it knew it on joining."""
        offset, _, begun = self._together.members[request]
        turn = (self._stored.get(request, 0) + 1) * self._size - offset - 1
        heappush(self._due, (turn if turn > begun else 0, request._order, request))


def _order(entry: Entry) -> int:
    return entry[0]
