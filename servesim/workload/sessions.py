"""Dependencies between the requests of a trace (conversations, agents and their sub-agents), resolved as a run
proceeds."""

from __future__ import annotations

from collections import deque
from heapq import heapify

from servesim.workload.trace import COMPLETION, DISPATCH, Trace

Entry = tuple[int, int]
"""Send time and number of a row."""


class Sessions:
    """State of the rows that wait for others and, if sessions are limited, of plays that wait for a slot.

    A play begins at its first recorded arrival or, if no slot is free then, when one becomes free; its recorded times
    shift accordingly.
    """

    def __init__(self, trace: Trace, max_sessions: int | None) -> None:
        n = len(trace)
        self._ready = trace.arrival_ns.tolist()  # earliest known send time of each row
        self._blocked = [0] * n  # number of pending triggers
        self._followers: tuple[dict[int, list[Entry]], ...] = ({}, {})  # by trigger: row -> [(waiter, delay)]
        if trace.after is not None:
            for row in range(n):
                for source, trigger, delay, _ in trace.after.edges(row):
                    self._followers[trigger].setdefault(source, []).append((row, delay))
                    self._blocked[row] += 1
        self._slots = deque([0] * min(max_sessions, n)) if max_sessions is not None else None
        if self._slots is not None:
            self._play = trace.plays().tolist()
            self._rows: list[list[int]] = [[] for _ in range(max(self._play) + 1)]
            for row, play in enumerate(self._play):
                self._rows[play].append(row)
            self._unfinished = [len(rows) for rows in self._rows]
            self._begun = 0

    def start(self) -> list[Entry]:
        """Return a heap of the rows that do not wait for others."""
        if self._slots is not None:
            entries = [entry for _ in range(len(self._slots)) for entry in self._begin()]
        else:
            entries = [(at, row) for row, at in enumerate(self._ready) if not self._blocked[row]]
        heapify(entries)
        return entries

    def release(self, row: int, trigger: int, now: int) -> list[Entry]:
        """Fire a trigger of `row` at `now`; return the rows that no longer wait for anything, with their send times."""
        entries = []
        for waiter, delay in self._followers[trigger].get(row, ()):
            self._ready[waiter] = max(self._ready[waiter], now + delay)
            self._blocked[waiter] -= 1
            if self._blocked[waiter] == 0:
                entries.append((self._ready[waiter], waiter))
        return entries

    def give_up(self, row: int) -> int:
        """Give up on the failed `row`; return how many rows will never be sent because they wait for it, directly or
        indirectly."""
        lost = 0
        waits = [waiter for waiter, _ in self._followers[COMPLETION].get(row, ())]
        while waits:
            waiter = waits.pop()
            if self._blocked[waiter] < 0:
                continue
            self._blocked[waiter] = -1  # no trigger can bring the counter to 0
            lost += 1
            if self._slots is not None:
                self._unfinished[self._play[waiter]] -= 1
            for trigger in (DISPATCH, COMPLETION):
                waits += [next_waiter for next_waiter, _ in self._followers[trigger].get(waiter, ())]
        return lost

    def end(self, row: int, now: int) -> list[Entry]:
        """Mark `row` as finished; if that ends its play, begin the next play and return its first rows."""
        if self._slots is None:
            return []
        play = self._play[row]
        self._unfinished[play] -= 1
        if self._unfinished[play]:
            return []
        self._slots.append(now)
        return self._begin()

    def _begin(self) -> list[Entry]:
        """Assign a slot to the next play."""
        assert self._slots is not None
        if self._begun == len(self._rows):
            return []
        rows = self._rows[self._begun]
        self._begun += 1
        first = [row for row in rows if not self._blocked[row]]
        moved = max(self._slots.popleft() - min(self._ready[row] for row in first), 0)
        for row in rows:
            self._ready[row] += moved
        return [(self._ready[row], row) for row in first]
