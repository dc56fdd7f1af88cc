"""Fast-forward of speculative decoding: a run of steps that all verify the same number of drafts for the same requests.

Acceptance of drafts is known in advance (see AcceptanceModel), so the contexts, memory and times of the coming steps
can be computed. Planning points are numbered as in `leap`: at E_p, the p-th commit is followed by the p-th plan. Only
the first step in flight may differ from the coming ones, because of prompts, requests that have ended since, or dummy
drafts.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import sub
from typing import NamedTuple

import numpy as np

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.cost import Batch, CostModel, Split
from servesim.contracts.kv import Usage
from servesim.contracts.request import Request, State
from servesim.engine.fast.acceptance_walk import DEEPEST, Walk
from servesim.engine.fast.core import FastCore
from servesim.engine.fast.cost import RunCost
from servesim.engine.fast.leap import Run
from servesim.engine.fast.memory import LockstepMemory
from servesim.engine.fast.verification import gain
from servesim.records.columns import Rows
from servesim.records.draft_runs import LateRun, StepRun
from servesim.records.recorder import Recorder
from servesim.records.row import Row
from servesim.records.step import Step

MOST = 256  # max. number of steps to look ahead
FEWEST = 5
"""Min. number of steps to look ahead before the next arrival: fewer cost less one by one. Fitted on the calls of
quick-eagle (3.3 requests a step), which differ by 0.2 % from 4 to 6."""


class Ahead(NamedTuple):
    """Tokens that the coming commits deliver."""

    m: int
    """Number of commits."""
    real: int
    """Number of commits that are not verifications like the others: 0 or 1."""
    walks: list[Walk]
    starts: list[int]
    """Index of each walk after the real commits."""


def can_run(core: FastCore) -> bool:
    """Return whether the steps in flight may be followed by further steps like the last one."""
    in_flight, speculator, acceptance = core.in_flight, core.speculator, core.acceptance
    first, last = in_flight[0], in_flight[-1]
    if not (core.stands and core.pure) or core.last_plan is None or core.last_plan.step_id != last.id:
        return False
    if core.hears_commits:
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
        "_ahead", "_contexts", "_gpu", "_host", "_known", "_split", "_starts", "_stepped", "_times", "_walks",
    )  # fmt: skip

    def __init__(
        self,
        ends: Rows,
        gpu: Rows,
        split: Split | Rows,
        host: int,
        ahead: Ahead,
        known: list[list[int]],
        contexts: Rows,
        beyond: int,
    ) -> None:
        super().__init__(ends.tolist(), len(gpu))
        self._split = split  # of `gpu`
        self._times, self._gpu, self._host = ends, gpu, host
        _, self._stepped, self._walks, self._starts = ahead
        self._known = known  # tokens after each commit, by request
        self._contexts = contexts  # sums after each plan
        self._ahead = beyond  # computed tokens per request beyond the known ones after a plan

    @classmethod
    def prepare(cls, core: FastCore, cost: CostModel, runs: RunCost, horizon_ns: int | None) -> DraftLeap | None:
        """Return the longest run from here, or None if the next planning point must be real."""
        in_flight = core.in_flight
        last = in_flight[-1]
        requests, batch, memory = last.sampled, last.batch, core.memory
        if memory is None:
            return None
        n, m, depth = len(requests), min(MOST, core.until - core.next_step_id), len(in_flight)
        if horizon_ns is not None:
            left = horizon_ns // (last.end_ns - last.start_ns) + 2
            if left < FEWEST:
                return None
            m = min(m, left)
        placeholders = depth * (1 + batch.drafts // n)
        ahead = _look_ahead(core, m, placeholders) if m >= 1 else None
        if ahead is None:
            return None
        beyond, m, one = placeholders - 1, ahead.m, 1 - ahead.real
        known = [walk.known[i + one : i + one + m] for walk, i in zip(ahead.walks, ahead.starts, strict=True)]
        m = memory.rounds_that_fit(requests, known, beyond + core.lookahead, m)
        if m < 1:
            return None
        contexts = np.zeros(m, dtype=np.int64)
        contexts += n * beyond
        for walk, i in zip(ahead.walks, ahead.starts, strict=True):
            contexts += walk.counts[i + one : i + one + m]
        over = runs.over_contexts(batch)
        if over is None:
            prices = [cost.price(_batch(batch, [row[j] + beyond for row in known])) for j in range(m)]
            gpu = np.array([price.gpu_ns for price in prices])
            split: Split | Rows = np.array([price.sources for price in prices])
            host = cost.host(batch)  # counts do not change along the run
        else:
            (gpu, split), host = over.price(contexts), over.host
        ends = np.empty(depth + m, dtype=np.int64)
        ends[:depth] = [step.end_ns for step in in_flight]
        ends[depth:] = cost.run_ns(gpu, host)
        np.add.accumulate(ends[depth - 1 :], out=ends[depth - 1 :])
        return cls(ends, gpu, split, sum(host), ahead, known, contexts, beyond)

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
        if m > real:
            self._deliver(core, recorder, requests, before)
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
        self._pass_on(core, recorder, replica, grown, memory)
        if core.checks:
            core.check_integrity()
        return in_flight[-1].end_ns

    def _deliver(self, core: FastCore, recorder: Recorder, requests: list[Request], before: int) -> None:
        """Count and record the tokens of all commits except the real one, which are the first ones after `before`."""
        m, real = self.skip, self._stepped
        drafts, ends, steps = core.in_flight[-1].batch.drafts // len(requests), self._ends, m - real
        gains = b"".join([w.gains[i : i + steps] for w, i in zip(self._walks, self._starts, strict=True)])
        at_once = core.spec_stats.add_many(drafts, gains)
        gaps = [ends[real] - before, *map(sub, ends[real + 1 : m], ends[real : m - 1])]
        run = LateRun([request.row for request in requests], gains, self._times[real:m], before)
        recorder.deliver(run, gaps, at_once)

    def _pass_on(
        self, core: FastCore, recorder: Recorder, replica: int, grown: list[tuple[int, int]], memory: LockstepMemory
    ) -> None:
        """Record the committed steps and put the planned ones in flight. `grown` is what memory allocated with each
        plan."""
        in_flight, m, real = core.in_flight, self.skip, self._stepped
        last, depth = in_flight[-1], len(in_flight)
        for i in range(min(m, depth)):  # really planned
            step = in_flight.popleft()
            if i >= real:
                step.accepted = self._accepted(i - real)
            recorder.step(step, replica)
        done = max(m - depth, 0)  # planned and committed within the run
        freed, copies = memory.given_back, memory.copies
        if done:
            run = StepRun(
                Row(last, 1, 0, 0, 0, 0, 0, 0, (0, 0, 0, 0)).cells(replica),
                done, self._times, depth, self._contexts, self._gpu, self._split, copies, grown, list(freed),
            )  # fmt: skip
            recorder.verified(replica, run)
        context = last.batch.decode_context_sum
        for j in range(done, m):
            allocated = sum([tokens for i, tokens in grown if i <= j + 1])
            gone = sum([tokens for i, tokens in freed if i <= j + 1]) if freed else 0
            filled = (int(self._contexts[j]) - context) * copies - gone
            in_flight.append(self._step(last, j, depth, allocated, filled))

    def _accepted(self, i: int) -> int:
        """Return the number of accepted drafts in the i-th commit after the real one."""
        return sum([walk.gains[start + i] - 1 for walk, start in zip(self._walks, self._starts, strict=True)])

    def _step(self, last: Step, j: int, depth: int, allocated: int, filled: int) -> Step:
        """Return the step planned at E_(j+1), which ends at E_(j+1+depth). Since the last real plan, `allocated` tokens
        have been allocated and `filled` tokens written."""
        usage, ends = last.usage, self._ends
        gpu, split = int(self._gpu[j]), self._split
        if isinstance(split, Split):
            sources = split.of(gpu)
        else:
            a, b, c, d = split[j].tolist()
            sources = (a, b, c, d)
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
            gpu_ns=gpu,
            host_ns=self._host,
            sources=sources,
        )


def _real(core: FastCore) -> int:
    """Return 1 if the first step in flight must be delivered request by request, else 0. It need not be because of
    requests that have ended since."""
    first, last, before = core.in_flight[0], core.in_flight[-1], core.committed_ns
    if not _verifies(first, last.batch.drafts // len(last.sampled)):
        return 1
    here = first.sampled
    if here != last.sampled and [request for request in here if request.state < State.FINISHED] != last.sampled:
        return 1
    for request in last.sampled:
        if request._last_token_ns != before:
            return 1
    return 0


def _look_ahead(core: FastCore, m: int, placeholders: int) -> Ahead | None:
    """Look at most m commits ahead, stopping before a request ends, or has more tokens than those with which `decode`
    serves it with `placeholders` tokens in flight. Return None if one does in the next commit."""
    first, last, speculator, acceptance = core.in_flight[0], core.in_flight[-1], core.speculator, core.acceptance
    assert speculator is not None
    assert acceptance is not None
    depth, width = speculator.depth(last.batch.drafts // len(last.sampled)), speculator.width
    limits = core.scheduler.limits
    longest, asynchronous = limits.max_model_len - placeholders, limits.async_scheduling
    real = _real(core)
    walks: list[Walk] = []
    starts: list[int] = []
    for request in last.sampled:
        known = request._num_tokens
        if real:
            known += gain(core, first, request)
            walk = request._walk
            if isinstance(walk, Walk) and walk.depth == depth and walk.delivers(request._num_tokens, known):
                start = walk.index + 1
            else:
                walk = Walk.of(request, known, depth)
                start = walk.index
        else:
            walk = request._walk
            if not isinstance(walk, Walk) or walk.tokens != known or walk.depth != depth:
                walk = Walk.of(request, known, depth)
            start = walk.index
        if len(walk.gains) - start <= m - real:
            m = real + walk.see(request, start, m - real, acceptance, width)
        bound = longest
        if asynchronous:
            cap = request.prompt_len + request.max_tokens - 2
            bound = cap if cap < longest else longest
        after = start + 1 - real  # index of the tokens after the next commit
        if m < 1 or walk.known[after] > bound:
            return None
        if walk.known[after + m - 1] > bound:
            m = bisect_right(walk.known, bound, after, after + m) - after
        walks.append(walk)
        starts.append(start)
    return Ahead(m, real, walks, starts)


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
