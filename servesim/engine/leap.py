"""Fast-forward: a run of equal decode steps as one event, exactly as if they had been stepped one by one.

With in_flight = S_1..S_D just planned (S_1 executing until E_1), planning points follow at E_1, E_2, ...: at
E_p the p-th step of the sequence is committed and one more is planned. As long as no request finishes in a
commit and every plan comes out the same, commits and plans 1..m need no event of their own; the replica wakes
at E_(m+1), where commit and plan are real again. An arrival at time a must be seen by the first planning
point at or after a, so it lowers m.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.cost import CostModel
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request
from servesim.engine.core import EngineCore
from servesim.engine.recorder import Recorder
from servesim.engine.step import Late, Step

MOST = 1024  # steps priced at once


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
        """A request has arrived: plan for real at the first planning point from now on. Whether that
        changes anything."""
        skip = max(bisect_left(self._ends, now), self._past)
        if skip >= self.skip:
            return False
        self.skip = skip
        return True

    def land(self, core: EngineCore, recorder: Recorder, replica: int) -> int:
        """Commits and plans 1..skip have happened: make it so. The step that ends now is left in flight.
        Returns when the last step in flight will end."""
        raise NotImplementedError

    def end(self, core: EngineCore, recorder: Recorder, replica: int) -> int:
        """`land`, at the time it was to end, and commit the step that ends then."""
        free_ns = self.land(core, recorder, replica)
        step = core.in_flight[0]
        core.commit(self.end_ns)
        recorder.step(step, replica)
        return free_ns


def _until_change(core: EngineCore) -> int:
    """For how many more planning points nobody who is in the last step planned can end before."""
    in_flight = core.in_flight
    depth, last = len(in_flight), in_flight[-1]
    most = MOST
    for request in last.sampled:
        if request.num_output_placeholders != depth:
            return 0
        left = request._end_tokens - request.num_tokens - 1
        if left < most:
            most = left
    return most if all(len(step.sampled) == len(last.sampled) for step in in_flight) else 0


class Leap(Run):
    """A run of steps of one token a request, and what is needed to account for them afterwards."""

    __slots__ = ("_gpu", "_host")

    def __init__(self, ends: list[int], gpu: NDArray[np.int64], host: int) -> None:
        super().__init__(ends, len(gpu))
        self._gpu = gpu  # of the steps to be planned meanwhile
        self._host = host

    @classmethod
    def prepare(cls, core: EngineCore, cost: CostModel, horizon_ns: int | None) -> Leap | None:
        """The longest run from here; None if the next planning point must be real. `horizon_ns`: beyond
        that from now it is not worth pricing."""
        in_flight = core.in_flight
        last = in_flight[-1]
        m = _until_change(core)
        duration = last.end_ns - last.start_ns
        if horizon_ns is not None:
            m = min(m, horizon_ns // duration + 1)
        held = last.usage.used + last.usage.internal + last.batch.sampled * MOST
        m = min(m, (1 << 61) // (held * duration) - 1)  # integrals of memory over time must fit 64 bits
        assert core.last_plan is not None
        if m >= 1:
            m = min(m, core.scheduler.steady(core.last_plan))
        if m >= 1:
            m = core.kv.steps_until_short(last.sampled, m)
        if m < 1:
            return None
        batch = last.batch.advance(1)
        host = cost.host(batch)
        gpu = cost.gpu_run(batch, m)
        ends = [step.end_ns for step in in_flight]
        ends += accumulate(cost.run_ns(gpu, host).tolist(), initial=ends.pop())
        return cls(ends, gpu, sum(host))

    def land(self, core: EngineCore, recorder: Recorder, replica: int) -> int:
        m, in_flight = self.skip, core.in_flight
        if m == 0:
            return in_flight[-1].end_ns
        last = in_flight[-1]
        batch_size, depth = last.batch.sampled, len(in_flight)
        core.kv.held_tokens += batch_size * m
        core.fruitless = 0
        grown = core.kv.grow_run(last.sampled, m)
        self._stamp(recorder, last.sampled, m, core.committed_ns)
        core.next_step_id += m
        core.note_commit(self._ends[m - 1])
        core.scheduler.advance(m)

        for _ in range(min(m, depth)):  # steps planned for real, now committed
            recorder.step(in_flight.popleft(), replica)
        done = max(m - depth, 0)  # steps planned and committed meanwhile
        if done:
            self._record(recorder, replica, last, depth, done, grown)
        for j in range(done + 1, m + 1):
            in_flight.append(self._step(last, j, depth, grown))
        if core.lockstep is not None:
            core.lockstep.step_id = core.next_step_id
            core.lockstep.committed = core.next_step_id - depth
        if core.checks:
            core.check_integrity()
        return in_flight[-1].end_ns

    def _stamp(self, recorder: Recorder, requests: list[Request], m: int, before: int) -> None:
        """Deliver m tokens to each request, at E_1..E_m; a step was committed `before`."""
        ends = self._ends
        first, last = ends[0], ends[m - 1]
        on_time = 0
        late: list[Late] = []
        for request in requests:
            request.num_tokens += m
            request.num_computed_tokens += m
            if request.first_token_ns < 0:
                request.first_token_ns = first
            elif request.last_token_ns == before:
                on_time += 1
            else:
                late.append((request.row, request.last_token_ns, 1))
            request.last_token_ns = last
        if on_time:
            recorder.gap(first - before, on_time)
        if late:
            recorder.late(first, late)
        if m > 1:
            recorder.gaps([b - a for a, b in pairwise(ends[:m])], len(requests))

    def _record(
        self, recorder: Recorder, replica: int, last: Step, depth: int, done: int, grown: list[tuple[int, int]]
    ) -> None:
        """One row for the `done` steps that were planned and committed in the run. The j-th starts at
        E_(j+depth-1); memory grows by one token a request from each to the next, and by whole blocks."""
        ends, batch_size = self._ends, last.batch.sampled
        first = self._step(last, 1, depth, grown)
        end = ends[depth - 1 + done]
        tokens_ns = batch_size * ((done - 1) * end - sum(ends[depth : depth - 1 + done]))
        later = [(step, tokens) for step, tokens in grown if 1 < step <= done]
        allocated_ns = sum(tokens * (end - ends[step + depth - 2]) for step, tokens in later)
        peak = first.usage.used + first.usage.internal + sum(tokens for _, tokens in later)
        gpu = int(self._gpu[:done].sum())
        recorder.run(first, replica, done, end, gpu, peak, tokens_ns, allocated_ns - tokens_ns)

    def _step(self, last: Step, j: int, depth: int, grown: list[tuple[int, int]]) -> Step:
        """The j-th step planned in the run, at E_j; it ends at E_(j+depth)."""
        allocated = sum(tokens for step, tokens in grown if step <= j)
        usage, batch_size = last.usage, last.batch.sampled
        return Step(
            last.id + j,
            last.batch.advance(j),
            last.sampled,
            True,
            Usage(
                usage.used + batch_size * j,
                usage.internal + allocated - batch_size * j,
                usage.external,
                usage.free - allocated,
            ),
            planned_ns=self._ends[j - 1],
            start_ns=self._ends[j + depth - 2],
            end_ns=self._ends[j + depth - 1],
            gpu_ns=int(self._gpu[j - 1]),
            host_ns=self._host,
            shares=last.shares,
        )
