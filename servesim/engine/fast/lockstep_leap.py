"""Fast-forward of requests in lockstep: a run of decode steps of all of them as one event.

Planning points are numbered as in `leap`. A run begins with the next one, or with a step that is planned now: after a
commit in which others ended, when only the rest of the lockstep is to be planned. If requests retire because their last
token is in flight, the last step of the run is the one without them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate

import numpy as np

from servesim.contracts.cost import Batch, RunSources, Sources, Times, added
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request
from servesim.engine.fast.core import MOST, FastCore
from servesim.engine.fast.cost import Run as Prices
from servesim.engine.fast.cost import RunCost
from servesim.engine.fast.leap import Run
from servesim.engine.fast.lockstep import Lockstep
from servesim.engine.fast.memory import LockstepMemory
from servesim.engine.fast.step import FastStep
from servesim.records.recorder import Recorder
from servesim.records.step import NO_DRAFTS

NOWHERE = Usage(0, 0, 0, 0)
NO_SOURCES = RunSources()
LONGEST = 1 << 61  # integrals of memory over time must fit in 64 bits


class LockstepLeap(Run):
    """Run that skips `skip` planning points, with the data needed to account for them afterwards."""

    __slots__ = (
        "_at", "_copies", "_depth", "_extended", "_given", "_gpu", "_grown", "_host", "_last", "_ns", "_silent",
        "_sources", "_usage", "batch", "most", "until_ns",
    )  # fmt: skip

    def __init__(
        self, ends: list[int], past: int, depth: int, batch: Batch, usage: Usage, most: int, horizon_ns: int | None
    ) -> None:
        Run.__init__(self, ends, 0, past)
        self.batch = batch
        """Batch of the first step."""
        self.most = most
        """Maximum number of steps with all members."""
        used, internal, _, _ = usage
        longest = LONGEST // (used + internal + batch.sampled * MOST)
        self.until_ns = longest if horizon_ns is None or horizon_ns > longest else horizon_ns
        """Time in ns within which steps are priced."""
        self._at = past  # number of planning points whose commits are applied
        self._depth = depth  # number of steps planned before the run and not past
        self._usage = usage  # before the run
        self._copies = 1  # number of times that memory counts a token
        self._given: list[tuple[int, int]] = []  # (step from 1, tokens used and then freed in it)
        self._gpu: Times = []  # of steps with all members; also the next 3 fields
        self._ns: Times = []
        self._host = 0
        self._sources = NO_SOURCES
        self._last: FastStep | None = None  # the step without the retiring requests
        self._extended = 0  # number of steps of the run for which memory has been extended
        self._silent = 0  # number of further ones before memory reports something
        self._grown: list[tuple[int, int]] = []  # (step from 1, tokens by which memory grew)

    @classmethod
    def prepare(
        cls, core: FastCore, runs: RunCost | None, now: int, horizon_ns: int | None, past: int
    ) -> LockstepLeap | None:
        """Return the longest run from here, or None if the next planning point must be real. That point is now if
        `past` is 1, otherwise at the end of the next step. The run will be cut off `horizon_ns` from now in any
        case. Without `runs`, it is to be priced by the caller (see `take`), and has steps with all members only."""
        lockstep, memory = core.lockstep, core.memory
        assert lockstep is not None
        assert memory is not None
        most = core.plans_known(past)
        if most < 1:
            return None
        ends, depth = [now] if past else [], past
        for step in core.in_flight:
            for request in step.sampled:
                if request not in lockstep.members or (core.on_first is not None and request.first_token_ns < 0):
                    most = min(most, depth)  # a request may end with it, or a first token may be awaited
            ends.append(step.end_ns)
            depth += 1
        m, retires = lockstep.steps_until_change(depth)
        # Nothing waits for the tokens of retiring requests.
        alone = retires and depth == 2 and not core.listened and (past > 0 or not core.scheduler.num_waiting())
        last = m + 1 if alone else m
        if last < most:
            most = last
        if most > 0:
            most = memory.steps_until_full(lockstep.turn, most, lockstep.free)
        if most > 0 and core.connector is not None:
            most = core.connector.turns_apart(lockstep.turn - len(ends) + 1, most)
        if most < 1:
            return None
        usage = core.kv.usage() if past else core.in_flight[-1].usage  # which was planned just now
        leap = cls(ends, past, depth, core.next_batch(), usage, m if m < most else most, horizon_ns)
        if runs is None:
            return leap if m else None
        if m:
            leap.take(runs.decode_run(leap.batch, leap.most, leap.until_ns))
            if leap._ns[0] < 1:
                return None  # the real plan will raise
        if most > m == len(leap._gpu) and (horizon_ns is None or leap._ends[m] < now + horizon_ns):
            leap._price_last(runs, lockstep, core.next_step_id)
        leap.skip = len(leap._ends) - depth
        if horizon_ns is not None:
            leap.cut(now + horizon_ns)
        return leap if leap.skip else None

    def take(self, prices: Prices) -> None:
        """Take the prices of steps with all members in lockstep, at most `most`."""
        self._gpu, self._ns, self._host, self._sources = prices
        ns = self._ns
        if isinstance(ns, list):
            self._ends.extend(accumulate(ns, initial=self._ends.pop()))
        else:
            self._ends = array("q", self._ends)
            self._ends.frombytes((ns.cumsum() + self._ends[-1]).tobytes())

    def _price_last(self, runs: RunCost, lockstep: Lockstep, first: int) -> None:
        """Price the step without the retiring requests. Its memory usage is not known yet."""
        m, ends = len(self._gpu), self._ends
        batch = lockstep.batch_without_retired(m, lockstep.turn + m - 1, self.batch)
        if batch is None:
            return
        gpu, ns, host, sources = runs.decode_run(batch, 1, 0)
        if ns[0] < 1:
            return  # the real plan will raise
        ends.append(ends[-1] + int(ns[0]))
        planned_ns, start_ns, end_ns, of_source = ends[m], ends[-2], ends[-1], sources.of(0, 1)
        step = self._last = FastStep(
            first + m, batch, [], NOWHERE, NO_DRAFTS, 0, planned_ns, start_ns, end_ns, int(gpu[0]), host, of_source
        )
        step.together, step.turn = batch.sampled, lockstep.turn + m

    def seen_at(self, core: FastCore, now: int) -> tuple[int, int] | None:
        """See `Run`."""
        lockstep, memory = core.lockstep, core.memory
        assert lockstep is not None
        assert memory is not None
        skip = min(max(bisect_left(self._ends, now), self._past), self.skip)
        if skip > len(self._gpu):
            return None  # the last step has fewer requests
        taken = memory.taken_in(lockstep.turn, skip)
        return None if taken is None else (self._usage.free - taken, self._ends[skip])

    def land(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """See `Run`."""
        if self.skip:
            self._go(core, recorder, replica, self.skip)
        return core.in_flight[-1].end_ns

    def end(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """See `Run`."""
        skip, in_flight = self.skip, core.in_flight
        if skip < self._depth:  # this step was in flight before the run
            return super().end(core, recorder, replica)
        retired = self._go(core, recorder, replica, skip, through=True)
        core.commit_run(self._ends[skip], retired)
        return in_flight[-1].end_ns if in_flight else self._ends[skip]

    def _go(self, core: FastCore, recorder: Recorder, replica: int, skip: int, through: bool = False) -> list[Request]:
        """Apply plans 1..skip and the commits before each of them. With `through`, the step that ends when the replica
        wakes is not left in flight, although its commit is left to the caller. Return the requests that have retired
        and get their last token from that step."""
        in_flight, lockstep, first, memory = core.in_flight, core.lockstep, core.next_step_id, core.memory
        assert lockstep is not None
        assert memory is not None
        turn, depth = lockstep.turn, self._depth
        m, n = len(self._gpu), len(lockstep.members)
        if skip < m:
            m = skip
        core.tokens_since_output = 0
        if m:
            if m > self._extended:
                self._extend(lockstep, memory, m - self._extended)
            self._copies, self._given = memory.copies, memory.given_back
            core.ledger.hold(n * m)
            lockstep.advance(m)
            if core.connector is not None:
                core.connector.ran_turns(turn - depth + 1, m, self._ends, depth)
        self._commit(core, recorder, replica, skip + through, n)
        done = skip + through - depth  # number of steps of the run that are over
        if done > 0:
            self._record(recorder, replica, first, turn, n, depth, done)
        for j in range(done + 1 if done > 0 else 1, m + 1):
            in_flight.append(self._step(first, turn, n, j, depth, self._sources.of(j - 1, j)))
        core.next_step_id = first + m
        lockstep.turn = turn + m
        lockstep.committed = turn + skip - depth
        retired = self._plan_last(core, lockstep) if skip > m else []
        if core.checks and not through:
            core.check_integrity()
        return retired

    def next_report_ns(self, core: FastCore) -> int | None:
        """See `Run`."""
        lockstep, memory, left = core.lockstep, core.memory, self.skip - self._extended
        assert lockstep is not None
        assert memory is not None
        turn = lockstep.turn + self._extended
        self._silent = memory.silent_turns(turn, turn - self._depth + 1, left)
        return self._ends[self._extended + self._silent] if self._silent < left else None

    def report(self, core: FastCore) -> None:
        """See `Run`."""
        lockstep, memory = core.lockstep, core.memory
        assert lockstep is not None
        assert memory is not None
        if self._extended + self._silent < self.skip:
            self._extend(lockstep, memory, self._silent + 1)

    def _extend(self, lockstep: Lockstep, memory: LockstepMemory, steps: int) -> None:
        """Extend memory for some more steps of the run."""
        done = self._extended
        turn = lockstep.turn + done
        self._extended = done + steps
        grown = memory.extend_run(turn, turn - self._depth + 1, steps)
        self._grown = grown if not done else self._grown + [(done + j, tokens) for j, tokens in grown]

    def _commit(self, core: FastCore, recorder: Recorder, replica: int, stop: int, n: int) -> None:
        """Deliver the tokens of the steps in flight, then one token to each of n members in every further step, until
        E_stop."""
        lockstep = core.lockstep
        assert lockstep is not None
        self.deliver(core, recorder, replica, stop)
        if self._at < stop:
            recorder.gaps(self._ns[: stop - self._depth], n)
        core.committed_ns = lockstep.committed_ns = lockstep.last_ns = self._ends[stop - 1]

    def deliver(self, core: FastCore, recorder: Recorder, replica: int, stop: int) -> None:
        """Deliver the tokens of the steps in flight that end until E_stop, including those of requests not yet in
        lockstep."""
        ends, at, lockstep = self._ends, self._at, core.lockstep
        assert lockstep is not None
        in_flight = lockstep.in_flight
        before = core.committed_ns
        while at < stop and in_flight:
            step, now = in_flight.popleft(), ends[at]
            if step.sampled or lockstep.committed_ns != before:
                core.deliver(step, before, now)
            else:
                if step.together:
                    recorder.gap(now - before, step.together)
                core.committed_ns = lockstep.committed_ns = now
            recorder.step(step, replica)
            before = now
            at += 1
        self._at = at

    def _plan_last(self, core: FastCore, lockstep: Lockstep) -> list[Request]:
        """Plan the step without the retiring requests, and return the retiring ones."""
        step, memory = self._last, core.memory
        assert step is not None
        assert memory is not None
        retired = lockstep.retire()
        kept = memory.extend(lockstep.turn, lockstep.committed)
        assert kept
        lockstep.advance(1)
        core.ledger.hold(step.batch.sampled)
        step.usage = core.kv.usage()
        core.in_flight.append(step)
        core.next_step_id = step.id + 1
        lockstep.turn += 1
        if core.connector is not None:
            core.connector.ran_turns(lockstep.committed, 1, self._ends[len(self._gpu) :], 2)
        return retired

    def _record(self, recorder: Recorder, replica: int, first: int, turn: int, n: int, depth: int, done: int) -> None:
        """Record the first `done` steps of the run in one row. Step j starts at E_(j+depth-1). From one step to the
        next, memory grows by one token per request (in each copy) and by whole blocks."""
        ends, gpu, grown, more = self._ends, self._gpu, self._grown, n * self._copies
        used, internal, external, _ = self._usage
        start, end = ends[depth - 1], ends[depth - 1 + done]
        part = ends[depth : depth - 1 + done]
        if isinstance(part, list):
            left = (done - 1) * end - sum(part)
        else:  # subtracted before they are added up: a sum of 3,000 times of a month is over 64 bits
            left = int(np.add.reduce(end - np.frombuffer(part, np.int64)))
        used_ns, internal_ns, before = more * left, 0, depth - 2
        held, used = used + internal, used + more
        if grown and grown[0][0] == 1:
            held, grown = held + grown[0][1], grown[1:]
        peak = at_first = held
        for j, tokens in grown:
            if j > done:
                break
            held += tokens
            if held > peak:
                peak = held
            internal_ns += tokens * (end - ends[j + before])
        for j, tokens in self._given:
            if j > done:
                break
            if j > 1:
                used_ns -= tokens * (end - ends[j + before])
            else:
                used -= tokens
        internal_ns -= used_ns
        row, gpu_ns = recorder.open_row(replica), added(gpu, 0, done)
        batch, sources = self.batch, self._sources.of(0, done)
        if (
            row is None
            or batch.padded_tokens
            or not row.can_append_decodes(first, n, batch.decode_context_sum, start, self._host, external)
        ):
            step = self._step(first, turn, n, 1, depth, sources)
            recorder.run(step, replica, done, end, gpu_ns, peak, used_ns, internal_ns, sources)
            return
        ns = end - start
        used_ns += used * ns
        internal_ns += (at_first - used) * ns
        row.extend(done, end, ns, gpu_ns, peak, used_ns, internal_ns, sources)

    def _step(self, first: int, turn: int, n: int, j: int, depth: int, sources: Sources) -> FastStep:
        """Return step j of the run, which is planned at E_j and ends at E_(j+depth)."""
        ends, allocated = self._ends, 0
        used, internal, external, free = self._usage
        for i, tokens in self._grown:
            if i > j:
                break
            allocated += tokens
        filled = n * self._copies * j
        for i, tokens in self._given:
            if i > j:
                break
            filled -= tokens
        usage = Usage(used + filled, internal + allocated - filled, external, free - allocated)
        batch, gpu_ns = self.batch.advance(j - 1) if j > 1 else self.batch, int(self._gpu[j - 1])
        planned_ns, start_ns, end_ns = ends[j - 1], ends[j + depth - 2], ends[j + depth - 1]
        step = FastStep(
            first + j - 1, batch, [], usage, NO_DRAFTS, 0, planned_ns, start_ns, end_ns, gpu_ns, self._host, sources
        )
        step.together, step.turn = n, turn + j - 1
        return step
