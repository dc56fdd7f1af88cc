"""Block tables of requests in lockstep, which are built only when they are read.

In each turn, every request whose last block is full is dealt one more block, in batch order. So requests whose blocks
fill up in the same turn are dealt their blocks together, and these are assigned to individual requests later. A request
that holds more blocks than it has filled sleeps until it has filled them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter, itemgetter

import numpy as np
from mypy_extensions import mypyc_attr

from servesim.contracts.request import Request
from servesim.engine.fast.kv.growth import most_rounds
from servesim.engine.fast.memory import LockstepMemory
from servesim.policies.kv._block_tables import MANY, WIDTH, ids
from servesim.policies.kv.paged import Paged

_TURN, _TOKENS = itemgetter(0), itemgetter(1)


class Rank:
    """Requests in lockstep that need their next block in the same step, in joining order."""

    __slots__ = ("_parts", "rounds", "size")

    def __init__(self) -> None:
        self.size = 0
        """Number of requests."""
        self.rounds: list[bytes] = []
        """Rounds of one block per request, in joining order, dealt since a request last joined or left."""
        self._parts: dict[Request, list[bytes]] = {}  # blocks dealt earlier, by request

    def join(self, request: Request) -> None:
        """Add a request."""
        if self.rounds:
            self._sort()
        self._parts[request] = []
        self.size += 1

    def wake(self, request: Request) -> None:
        """Add a request at its batch position."""
        self.join(request)
        self._parts = {each: self._parts[each] for each in sorted(self._parts, key=attrgetter("_order"))}

    def leave(self, request: Request) -> bytes:
        """Remove a request. Return the blocks dealt to it but not yet collected."""
        blocks = self.collect(request)
        del self._parts[request]
        self.size -= 1
        return blocks

    def requests(self) -> list[Request]:
        """Return the requests, in joining order."""
        return list(self._parts)

    def collect(self, request: Request) -> bytes:
        """Return the blocks dealt to a request since this was last called for it."""
        if self.rounds:
            self._sort()
        parts = self._parts[request]
        if not parts:
            return b""
        blocks = b"".join(parts)
        parts.clear()
        return blocks

    def _sort(self) -> None:
        """Sort the blocks of all rounds, of which there are some, by request."""
        size, rounds, members = self.size, len(self.rounds), self._parts.values()
        blocks = b"".join(self.rounds)
        self.rounds.clear()
        if size == 1:
            for parts in members:
                parts.append(blocks)
        elif rounds * size < MANY:
            dealt = ids(blocks)
            for i, parts in enumerate(members):
                parts.append(dealt[i::size].tobytes())
        else:
            blocks = np.frombuffer(blocks, np.intc).reshape(rounds, size).T.copy().tobytes()
            each = rounds * WIDTH
            for i, parts in enumerate(members):
                parts.append(blocks[i * each : (i + 1) * each])


@mypyc_attr(allow_interpreted_subclasses=True)
class TableTurns(LockstepMemory):
    """Block tables of requests that grow together. Members' tables lack the blocks that are still held by their
    rank."""

    def __init__(self, kv: Paged) -> None:
        super().__init__()
        self._kv = kv
        self._size = kv.block_size
        self._ranks: dict[int, Rank] = {}  # by the turn (modulo the block size) at which they need a block
        self._rank_of: dict[Request, Rank] = {}
        self._asleep: dict[Request, int] = {}  # by the turn at which they wake

    def _delivered(self, requests: Sequence[Request], known: list[int]) -> None:
        """Record that members have `known` tokens each after a run of steps with drafts."""

    def join(self, request: Request, offset: int, num_tokens: int) -> bool:
        if self._kv._partial:
            return False
        slots = len(self._kv._tables[request]) * self._size
        if slots < num_tokens:
            return False
        if slots >= num_tokens + self._size:
            self._asleep[request] = slots - offset
        else:
            self._rank(-offset, request).join(request)
        return True

    def _rank(self, turn: int, request: Request) -> Rank:
        """Assign a request that needs a block at `turn` to a rank, and return the rank."""
        phase = turn % self._size
        rank = self._ranks.get(phase)
        if rank is None:
            rank = self._ranks[phase] = Rank()
        self._rank_of[request] = rank
        return rank

    def leave(self, request: Request, offset: int) -> None:
        if self._asleep.pop(request, None) is None:
            rank = self._rank_of.pop(request)
            self._kv._tables[request].frombytes(rank.leave(request))
            if not rank.size:
                del self._ranks[-offset % self._size]

    def extend(self, turn: int, committed: int) -> bool:
        rank = self._due(turn)
        if rank is not None:
            if rank.size > self._kv.num_free_blocks():
                return False
            rank.rounds.append(self._kv._take(rank.size).tobytes())
        return True

    def _due(self, turn: int) -> Rank | None:
        """Wake the requests that have filled their blocks by a turn. Return the rank that needs blocks in it, if
        any."""
        if self._asleep:
            for request, wakes in list(self._asleep.items()):
                if wakes <= turn:
                    del self._asleep[request]
                    self._rank(wakes, request).wake(request)
        return self._ranks.get(turn % self._size)

    def steps_until_full(self, turn: int, limit: int, reserve: int) -> int:
        if self._asleep:
            limit = min(limit, min(self._asleep.values()) - turn)
        return self._turns_within(self._kv.num_free_blocks() - -(-reserve // self._size), turn, limit)

    def _turns_within(self, free: int, turn: int, limit: int) -> int:
        """Return the number of turns from `turn` on, at most `limit`, for which `free` blocks suffice if none wakes."""
        bs, n = self._size, len(self._rank_of)
        if free < 0 or limit <= 0:
            return 0
        if n * -(-limit // bs) <= free:
            return limit
        cycles, free = divmod(free, n)
        for steps in range(bs):
            rank = self._ranks.get((turn + steps) % bs)
            if rank is not None:
                free -= rank.size
                if free < 0:
                    return min(cycles * bs + steps, limit)
        return limit

    def extend_run(self, turn: int, committed: int, k: int) -> list[tuple[int, int]]:
        bs = self._size
        due = [(i, rank) for phase, rank in self._ranks.items() if (i := (phase - turn) % bs) < k]
        if not due:
            return []
        due.sort(key=_TURN)
        grown = [(i + 1, rank.size * bs) for i, rank in due]
        if k > bs:  # repeat, one block later
            grown = [(i + later, tokens) for later in range(0, k, bs) for i, tokens in grown if i + later <= k]
        blocks = self._kv._take(sum(map(_TOKENS, grown)) // bs).tobytes()
        first, cycle, total = 0, len(self._rank_of) * WIDTH, len(blocks)
        for _, rank in due:
            stop = first + rank.size * WIDTH
            rank.rounds.append(blocks[first:stop])
            if k > bs:
                size = stop - first
                rank.rounds += [blocks[start : start + size] for start in range(first + cycle, total, cycle)]
            first = stop
        return grown

    def taken_in(self, turn: int, k: int) -> int | None:
        bs = self._size
        rounds = [rank.size * ((k - 1 - (phase - turn) % bs) // bs + 1) for phase, rank in self._ranks.items()]
        return sum(rounds) * bs

    def complete(self, request: Request) -> None:
        """Complete the table of a request."""
        rank = self._rank_of.get(request)
        if rank is not None:
            self._kv._tables[request].frombytes(rank.collect(request))

    def complete_all(self) -> None:
        """Complete all tables."""
        for request in self._rank_of:
            self.complete(request)

    def rounds_that_fit(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, limit: int
    ) -> int:
        if self._kv._partial:
            return 0
        bs, free, last, short = self._size, self._kv.num_free_blocks(), limit - 1, 0
        for request, known in zip(requests, tokens, strict=True):
            more = (known[last] + ahead + bs - 1) // bs - len(self._kv._tables[request])
            if more > 0:
                short += more
        if short <= free:
            return limit
        held = [len(self._kv._tables[request]) for request in requests]

        def needed(k: int) -> int:
            ends = [min(known[k - 1] + ahead, self._kv.max_model_len) for known in tokens]
            return sum([max((end + bs - 1) // bs - have, 0) for end, have in zip(ends, held, strict=True)])

        return most_rounds(needed, free, limit)

    def grow_rounds(
        self, requests: Sequence[Request], tokens: Sequence[Sequence[int]], ahead: int, k: int
    ) -> list[tuple[int, int]]:
        bs = self._size
        last = (self._kv.max_model_len + bs - 1) // bs
        due: list[tuple[int, array[int], int]] = []
        for request, known in zip(requests, tokens, strict=True):
            table = self._kv._tables[request]
            blocks, most = len(table), min((known[k - 1] + ahead + bs - 1) // bs, last)
            while blocks < most:
                i = bisect_right(known, blocks * bs - ahead)
                end = (known[i] + ahead + bs - 1) // bs
                more = (end if end < last else last) - blocks
                due.append((i + 1, table, more))
                blocks += more
        due.sort(key=_TURN)
        grown: dict[int, int] = {}
        taken, first = self._kv._take(sum([more for _, _, more in due])), 0
        for i, table, more in due:
            table += taken[first : first + more]
            first += more
            grown[i] = grown.get(i, 0) + more * bs
        self._delivered(requests, [known[k - 1] for known in tokens])
        return list(grown.items())
