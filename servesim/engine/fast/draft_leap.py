"""Fast-forward of speculative decoding: a run of steps that all verify the same number of drafts for the same requests.

Acceptance of drafts is known in advance (see AcceptanceModel), so the contexts, memory and times of the coming steps
can be computed. Planning points are numbered as in `leap`: at E_p, the p-th commit is followed by the p-th plan. Only
the first step in flight may differ from the coming ones, because of prompts, requests that have ended since, or dummy
drafts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.cost import Batch, CostModel
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request, State
from servesim.engine.fast.acceptance_walk import DEEPEST, Walk
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.cost import runs_of
from servesim.engine.fast.leap import Run
from servesim.engine.fast.verification import gain
from servesim.records.columns import STEP_COLUMNS, Rows
from servesim.records.recorder import Recorder
from servesim.records.row import Row
from servesim.records.step import Step

MOST = 256  # max. number of steps to look ahead
ACCEPTED = STEP_COLUMNS.index("accepted")
SOURCES = slice(STEP_COLUMNS.index("measured_ns"), STEP_COLUMNS.index("roofline_ns") + 1)
VARYING = [
    STEP_COLUMNS.index(name)
    for name in (
        "step", "planned_ns", "start_ns", "end_ns", "elapsed_ns", "decode_context", "gpu_ns",
        "kv_used", "kv_internal", "kv_peak", "kv_used_ns", "kv_internal_ns",
    )
]  # fmt: skip
"""Columns that differ between the steps of a run, besides the accepted drafts."""


class Ahead(NamedTuple):
    """Tokens that the coming commits deliver."""

    m: int
    """Number of commits."""
    real: int
    """Number of commits that are not verifications like the others: 0 or 1."""
    walks: list[Walk]
    starts: list[int]
    """Index of each walk after the real commits."""
    tokens: Rows
    """Known tokens after each commit, of shape (requests, m) or more."""
    known: list[list[int]]
    """`tokens` as lists."""
    gains: NDArray[np.uint8]
    """Tokens delivered by each commit except the real ones, of shape (requests, m - real) or more."""


def can_run(core: FastCore) -> bool:
    """Return whether the steps in flight may be followed by further steps like the last one."""
    in_flight, speculator, acceptance = core.in_flight, core.speculator, core.acceptance
    first, last = in_flight[0], in_flight[-1]
    if not (core.stands and core.pure) or core.last_plan is None or core.last_plan.step_id != last.id:
        return False
    if core.refused and core.memory is not None and not core.memory.only_takes():
        return False
    if speculator is None or not last.drafts or speculator.expands or not speculator.steady():
        return False
    if acceptance is None or type(acceptance).available is not AcceptanceModel.available:
        return False  # the number of drafts varies by token
    if last.batch.draft_k > DEEPEST:
        return False
    drafts, depth = speculator.verified(last.batch.draft_k), len(in_flight)
    for step in in_flight:
        if step is first and depth > 1:
            continue
        if not _verifies(step, drafts) or step.batch.draft_k != last.batch.draft_k or step.sampled != last.sampled:
            return False
    if depth == 1:
        return True
    if core.on_first is not None and any(request.first_token_ns < 0 for request in first.sampled):
        return False
    if not core.scheduler.limits.async_scheduling or first.stale is not None:
        return False
    if _verifies(first, drafts) and first.sampled == last.sampled:
        return True
    if core.shares:
        return False  # others may look up a prompt that it computes while it is skipped
    here = [request for request in first.sampled if request.state < State.FINISHED]
    return here == last.sampled and not any(r.parent is not None and r.parent.unforked for r in here)


def _verifies(step: Step, drafts: int) -> bool:
    """Return whether a step only verifies `drafts` drafts of each of its requests."""
    batch, n = step.batch, len(step.sampled)
    whole = batch.drafts == drafts * n and batch.linear_tokens == batch.drafts + n
    return whole and not batch.prefill and not step.dummies


class DraftLeap(Run):
    """Run that skips `skip` planning points, with the data needed to account for them afterwards."""

    __slots__ = (
        "_ahead", "_contexts", "_gains", "_gpu", "_host", "_known", "_sources", "_starts", "_stepped", "_times",
        "_walks",
    )  # fmt: skip

    def __init__(
        self, ends: Rows, gpu: Rows, sources: Rows, host: int, ahead: Ahead, contexts: Rows, beyond: int
    ) -> None:
        super().__init__(ends.tolist(), len(gpu))
        self._sources = sources  # of `gpu`, of shape (steps, 4)
        self._times, self._gpu, self._host = ends, gpu, host
        _, self._stepped, self._walks, self._starts, _, self._known, self._gains = ahead
        self._contexts = contexts  # sums after each plan
        self._ahead = beyond  # computed tokens per request beyond the known ones after a plan

    @classmethod
    def prepare(cls, core: FastCore, cost: CostModel, horizon_ns: int | None) -> DraftLeap | None:
        """Return the longest run from here, or None if the next planning point must be real."""
        in_flight = core.in_flight
        last = in_flight[-1]
        requests, batch, memory = last.sampled, last.batch, core.memory
        if memory is None:
            return None
        n, m = len(requests), min(MOST, core.until - core.next_step_id)
        if horizon_ns is not None:
            m = min(m, horizon_ns // (last.end_ns - last.start_ns) + 2)
        placeholders = len(in_flight) * (1 + batch.drafts // n)
        ahead = _look_ahead(core, m, _bounds(core, requests, placeholders)) if m >= 1 else None
        if ahead is None:
            return None
        beyond = placeholders - 1
        known = ahead.known
        m = memory.rounds_that_fit(requests, known, beyond + core.lookahead, ahead.m)
        if m < 1:
            return None
        contexts = np.add.reduce(ahead.tokens[:, :m], 0)
        contexts += n * beyond
        runs = runs_of(cost)
        gpu = runs.gpu_over(batch, contexts)
        if gpu is None:
            prices = [cost.price(_batch(batch, [row[j] + beyond for row in known])) for j in range(m)]
            gpu = np.array([price.gpu_ns for price in prices])
            sources = np.array([price.sources for price in prices])
        else:
            sources = runs.sources_over(batch, contexts, gpu)
        host = cost.host(batch)  # counts do not change along the run
        depth = len(in_flight)
        ends = np.empty(depth + m, dtype=np.int64)
        ends[:depth] = [step.end_ns for step in in_flight]
        ends[depth:] = cost.run_ns(gpu, host)
        np.add.accumulate(ends[depth - 1 :], out=ends[depth - 1 :])
        return cls(ends, gpu, sources, sum(host), ahead, contexts, beyond)

    def land(self, core: FastCore, recorder: Recorder, replica: int) -> int:
        """See `Run`."""
        m, in_flight = self.skip, core.in_flight
        if m == 0:
            return in_flight[-1].end_ns
        last, before, real, end = in_flight[-1], core.committed_ns, self._stepped, self._ends[m - 1]
        requests, memory = last.sampled, core.memory
        assert memory is not None
        grown = memory.grow_rounds(requests, self._known, self._ahead + core.lookahead, m)
        held = core.kv.held_tokens + int(self._contexts[m - 1]) - last.batch.decode_context_sum
        if real:
            core.deliver(in_flight[0], before, self._ends[0])
            before = self._ends[0]
        gains = self._gains[:, : m - real]
        if m > real:
            at_once = core.spec_stats.add_many(last.batch.drafts // len(requests), gains.tobytes())
            recorder.deliver([request.row for request in requests], gains, self._times[real:m], before, at_once)
        core.spec_stats.proposed += m * last.batch.drafts
        for request, walk, start, known_after in zip(requests, self._walks, self._starts, self._known, strict=True):
            known = known_after[m - 1]
            request._num_tokens = known
            request._num_computed_tokens = known + self._ahead
            request._num_output_placeholders = self._ahead + 1
            request._last_token_ns = end
            request._walk = walk
            walk.index, walk.tokens = start + m - real, known
        core.ledger.hold(held - core.kv.held_tokens)
        core.next_step_id += m
        core.tokens_since_output = 0
        core.note_commit(end)
        allocated, given = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.int64)
        for i, taken in grown:
            allocated[i - 1] = taken
        for i, back in memory.given_back:
            given[i - 1] = back
        filled = (self._contexts[:m] - last.batch.decode_context_sum) * memory.copies - given.cumsum()
        accepted = np.add.reduce(gains, 0, np.int64) - len(requests)
        self._pass_on(core, recorder, replica, allocated.cumsum(), filled, accepted)
        if core.checks:
            core.check_integrity()
        return in_flight[-1].end_ns

    def _pass_on(
        self, core: FastCore, recorder: Recorder, replica: int, allocated: Rows, filled: Rows, accepted: Rows
    ) -> None:
        """Record the committed steps and put the planned ones in flight. For each plan, `allocated` gives the number of
        tokens allocated since the last real plan and `filled` how many of them are used. For each commit except the
        real one, `accepted` gives the number of accepted drafts."""
        in_flight, m, real = core.in_flight, self.skip, self._stepped
        last, depth = in_flight[-1], len(in_flight)
        for i in range(min(m, depth)):  # really planned
            step = in_flight.popleft()
            if i >= real:
                step.accepted = int(accepted[i - real])
            recorder.step(step, replica)
        done = max(m - depth, 0)  # planned and committed within the run
        if done:
            rows = self._rows(last, replica, depth, allocated[:done], filled[:done])
            rows[:, ACCEPTED] = accepted[depth - real :]
            recorder.rows(replica, rows)
        for j in range(done, m):
            in_flight.append(self._step(last, j, depth, int(allocated[j]), int(filled[j])))

    def _rows(self, last: Step, replica: int, depth: int, allocated: Rows, filled: Rows) -> Rows:
        """Return the rows of the step table for the first steps planned in the run (see `_step`), without the accepted
        drafts."""
        count, usage, times = len(allocated), last.usage, self._times
        rows = np.empty((count, len(STEP_COLUMNS)), dtype=np.int64)
        rows[:] = Row(last, 1, 0, 0, 0, 0, 0, 0, (0, 0, 0, 0)).cells(replica)
        rows[:, SOURCES] = self._sources[:count]
        contexts, start, end = self._contexts[:count], times[depth - 1 :][:count], times[depth:][:count]
        ns = end - start
        used, peak = filled + usage.used, allocated + (usage.used + usage.internal)
        internal = peak - used
        columns = (
            np.arange(last.id + 1, last.id + 1 + count), times[:count], start, end, ns, contexts, self._gpu[:count],
            used, internal, peak, used * ns, internal * ns,
        )  # fmt: skip
        for at, column in zip(VARYING, columns, strict=True):
            rows[:, at] = column
        return rows

    def _step(self, last: Step, j: int, depth: int, allocated: int, filled: int) -> Step:
        """Return the step planned at E_(j+1), which ends at E_(j+1+depth). Since the last real plan, `allocated` tokens
        have been allocated and `filled` tokens written."""
        usage, ends = last.usage, self._ends
        a, b, c, d = self._sources[j]
        batch = _batch(last.batch, [known[j] + self._ahead for known in self._known])
        return Step(
            last.id + 1 + j,
            batch,
            last.sampled,
            Usage(usage.used + filled, usage.internal + allocated - filled, usage.external, usage.free - allocated),
            drafts=last.drafts,
            planned_ns=ends[j],
            start_ns=ends[j + depth - 1],
            end_ns=ends[j + depth],
            gpu_ns=int(self._gpu[j]),
            host_ns=self._host,
            sources=(int(a), int(b), int(c), int(d)),
        )


def _bounds(core: FastCore, requests: Sequence[Request], placeholders: int) -> Sequence[int]:
    """Return the largest `num_tokens` of each request up to which `decode` serves it with `placeholders` tokens in
    flight."""
    limits = core.scheduler.limits
    longest = limits.max_model_len - placeholders
    if not limits.async_scheduling:
        return [longest] * len(requests)
    return [min(request.prompt_len + request.max_tokens - 2, longest) for request in requests]


def _real(core: FastCore) -> int:
    """Return 1 if the first step in flight must be delivered request by request, else 0."""
    first, last, before = core.in_flight[0], core.in_flight[-1], core.committed_ns
    if first.sampled != last.sampled or not _verifies(first, last.batch.drafts // len(last.sampled)):
        return 1
    return int(any(request._last_token_ns != before for request in last.sampled))


def _look_ahead(core: FastCore, m: int, bounds: Sequence[int]) -> Ahead | None:
    """Look at most m commits ahead, stopping before a request ends or exceeds its bound. Return None if one does in the
    next commit."""
    first, last, speculator, acceptance = core.in_flight[0], core.in_flight[-1], core.speculator, core.acceptance
    assert speculator is not None
    assert acceptance is not None
    depth, width = speculator.depth(last.batch.drafts // len(last.sampled)), speculator.width
    real = _real(core)
    walks: list[Walk] = []
    starts: list[int] = []
    tokens: list[int] = []
    for request in last.sampled:
        known, start = request._num_tokens, 0
        if real:
            gained = gain(core, first, request)
            walk = request._walk
            if not isinstance(walk, Walk) or not walk.delivers(known, depth, gained):
                walk = Walk.of(request, known + gained, depth)
                start = walk.index
            else:
                start = walk.index + 1
            known += gained
        else:
            walk = Walk.of(request, known, depth)
            start = walk.index
        m = min(m, real + walk.see(request, start, m - real, acceptance, width))
        if m < 1:
            return None
        walks.append(walk)
        starts.append(start)
        tokens.append(known)
    steps = m - real
    told = b"".join([walk.gains[start : start + steps] for walk, start in zip(walks, starts, strict=True)])
    gains = np.frombuffer(told, dtype=np.uint8).reshape(len(walks), steps)
    after = np.empty((len(walks), steps + 1), dtype=np.int64)
    after[:, 0] = tokens
    after[:, 1:] = gains
    np.add.accumulate(after, 1, out=after)
    after = after[:, 1 - real :]
    known_after = after.tolist()
    for row, bound in zip(known_after, bounds, strict=False):
        if row[m - 1] > bound:
            m = min(m, bisect_right(row, bound))
    return Ahead(m, real, walks, starts, after, known_after, gains) if m >= 1 else None


def _batch(like: Batch, contexts: list[int]) -> Batch:
    """Return a batch of the same shape but with other contexts."""
    total = sum(contexts)
    return Batch(
        like.linear_tokens,
        decode_count=like.decode_count,
        decode_context_sum=total,
        decode_context_sumsq=sum([context * context for context in contexts]),
        decode_context_max=max(contexts),
        queries_per_sequence=like.queries_per_sequence,
        sampled=like.sampled,
        padded_tokens=like.padded_tokens,
        attention=like.attention,
        drafts=like.drafts,
        draft_k=like.draft_k,
        sampled_context=total,
    )
