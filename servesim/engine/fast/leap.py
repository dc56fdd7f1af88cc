"""Fast-forward: a run of steps with known plans as one event, with exactly the results of taking the steps one by one.

With in_flight = S_1..S_D just planned (S_1 executing until E_1), planning points follow at E_1, E_2, ...: at E_p the
p-th step of the sequence is committed and one more is planned. As long as no request finishes in a commit and every
plan is known, commits and plans 1..m need no separate events; the replica wakes at E_(m+1), when commit and plan are
real again. An arrival at time a must be seen by the first planning point at or after a, so it lowers m, as does any
other event that needs the replica's current state.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from servesim.engine.fast.core import FastCore
from servesim.records.recorder import Recorder


class Run:
    """Run of steps that skips `skip` planning points."""

    __slots__ = ("_ends", "_past", "postponed", "skip")

    def __init__(self, ends: list[int], skip: int, past: int = 0) -> None:
        self._ends: list[int] | array[int] = ends  # E_1..E_(skip+depth)
        self.skip = skip
        self._past = past  # planning points already past when the run begins (zero or one)
        self.postponed = False
        """Whether it is still to be worked out."""

    @property
    def end_ns(self) -> int:
        """Time in ns at which the replica wakes: E_(skip+1)."""
        return self._ends[self.skip]

    def cut(self, now: int) -> bool:
        """Make the first planning point at or after `now` real. Return whether that changes anything."""
        skip = bisect_left(self._ends, now)
        if skip < self._past:
            skip = self._past
        if skip >= self.skip:
            return False
        self.skip = skip
        return True

    def seen_at(self, core: FastCore, now: int) -> tuple[int, int] | None:
        """Return the free tokens of KV memory and the end of the running step as they would be if the run were cut at
        `now` and landed, or None if only that can tell."""
        return None

    def next_report_ns(self, core: FastCore) -> int | None:
        """Return the time of the next planning point of the run at which memory reports blocks, or None if it reports
        none. Called only if memory in lockstep has a listener."""
        return None

    def report(self, core: FastCore) -> None:
        """Let memory report the blocks of that planning point, which is now."""
        raise NotImplementedError

    def land(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """Apply commits and plans 1..skip. Leave the step that ends now in flight. Return the time at which the last
        step in flight will end."""
        raise NotImplementedError

    def end(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """Apply the run up to its scheduled end, and commit the step that ends then."""
        free_ns = self.land(core, recorder, replica)
        step = core.in_flight[0]
        core.commit(self.end_ns)
        recorder.step(step, replica)
        return free_ns


class Postponed(Run):
    """Run that is worked out at E_1, unless it has been cut by then, as it often is after a plan that began a load."""

    __slots__ = ("horizon_ns", "since_ns")

    def __init__(self, first_ns: int, since_ns: int, horizon_ns: int | None) -> None:
        super().__init__([first_ns], 0)
        self.since_ns, self.horizon_ns = since_ns, horizon_ns
        self.postponed = True

    def cut(self, now: int) -> bool:
        """See `Run`."""
        self.postponed = False
        return False

    def land(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """See `Run`."""
        return core.in_flight[-1].end_ns
