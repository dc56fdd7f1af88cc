"""Fast-forward: a run of steps whose plans are known as one event, exactly as if they had been stepped one by one.

With in_flight = S_1..S_D just planned (S_1 executing until E_1), planning points follow at E_1, E_2, ...: at
E_p the p-th step of the sequence is committed and one more is planned. As long as no request finishes in a
commit and every plan is known, commits and plans 1..m need no event of their own; the replica wakes
at E_(m+1), where commit and plan are real again. An arrival at time a must be seen by the first planning
point at or after a, so it lowers m; so does any other event that wants the replica as it is at its instant.
"""

from __future__ import annotations

from bisect import bisect_left

from servesim.engine.fast.core import FastCore
from servesim.records.recorder import Recorder


class Run:
    """`skip` planning points to be skipped."""

    __slots__ = ("_ends", "_past", "skip")

    def __init__(self, ends: list[int], skip: int, past: int = 0) -> None:
        self._ends = ends  # E_1..E_(skip+depth)
        self.skip = skip
        self._past = past  # planning points that are past when the run begins: none or one

    @property
    def end_ns(self) -> int:
        """When the replica wakes: E_(skip+1)."""
        return self._ends[self.skip]

    def cut(self, now: int) -> bool:
        """Plan for real at the first planning point from `now` on. Return whether that changes anything."""
        skip = max(bisect_left(self._ends, now), self._past)
        if skip >= self.skip:
            return False
        self.skip = skip
        return True

    def land(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """Make it so that commits and plans 1..skip have happened. The step that ends now is left in flight. Return
        when the last step in flight will end."""
        raise NotImplementedError

    def end(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """Land at the time the run was to end, and commit the step that ends then."""
        free_ns = self.land(core, recorder, replica)
        step = core.in_flight[0]
        core.commit(self.end_ns)
        recorder.step(step, replica)
        return free_ns
