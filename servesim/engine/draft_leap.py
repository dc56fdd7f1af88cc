"""Fast-forward of speculative decoding: a run of steps that all verify as many drafts of the same requests.

Which drafts will be accepted is known beforehand (see AcceptanceModel), so contexts, memory and times of the steps to
come follow. Planning points are numbered as in `leap`: at E_p the p-th commit, then the p-th plan.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.cost import Batch, CostModel
from servesim.contracts.kv import Usage
from servesim.engine.core import EngineCore
from servesim.engine.leap import Run
from servesim.engine.recorder import Recorder
from servesim.engine.step import Late, Step

MOST = 256  # steps looked ahead at once


def can_run(core: EngineCore) -> bool:
    """Whether the steps in flight may be followed by others like them."""
    last = core.in_flight[-1]
    speculator, acceptance = core.speculator, core.acceptance
    if speculator is None or not last.drafts or speculator.expands or not speculator.steady():
        return False
    if acceptance is None or type(acceptance).available is not AcceptanceModel.available:
        return False  # how many drafts there are differs from token to token
    drafts, shape = speculator.verified(last.batch.draft_k), (len(last.sampled), last.batch.draft_k)
    for step in core.in_flight:
        batch = step.batch
        if step.dummies or batch.prefill or (len(step.sampled), batch.draft_k) != shape:
            return False
        if batch.drafts != drafts * len(step.sampled) or batch.linear_tokens != batch.drafts + len(step.sampled):
            return False
    tokens = len(core.in_flight) * (1 + drafts)
    return all(request.num_output_placeholders == tokens for request in last.sampled)


class DraftLeap(Run):
    """`skip` planning points to be skipped, and what is needed to account for them afterwards."""

    __slots__ = ("_delivered", "_gpu", "_host", "_steps")

    def __init__(
        self, ends: list[int], gpu: list[int], host: int, delivered: NDArray[np.int64], steps: list[Batch]
    ) -> None:
        super().__init__(ends, len(steps))
        self._gpu, self._host = gpu, host
        self._delivered = delivered  # tokens by commit and request
        self._steps = steps  # batches of the steps to be planned meanwhile

    @classmethod
    def prepare(cls, core: EngineCore, cost: CostModel, horizon_ns: int | None) -> DraftLeap | None:
        """The longest run from here; None if the next planning point must be real."""
        last = core.in_flight[-1]
        most = MOST
        if horizon_ns is not None:
            most = min(most, horizon_ns // (last.end_ns - last.start_ns) + 2)
        assert core.last_plan is not None
        m = min(most, core.scheduler.steady(core.last_plan))
        if m < 1:
            return None
        delivered = _look_ahead(core, m)
        requests = last.sampled
        left = np.array([r._end_tokens - r.num_tokens for r in requests])
        m = int((delivered.cumsum(axis=0) < left).all(axis=1).sum())  # commits in which nobody ends
        if m < 1:
            return None
        delivered = delivered[:m]
        after = _contexts(core, delivered)
        limit = core.kv.max_model_len
        m = core.kv.rounds_that_fit(requests, np.minimum(after + core.lookahead, limit))
        if m < 1:
            return None
        batches = _batches(last.batch, after[:m])
        host = cost.host(batches[0])  # counts do not change along the run
        gpu = [cost.gpu_ns(batch) for batch in batches]
        ends = [step.end_ns for step in core.in_flight]
        ends += accumulate((cost.step_ns(ns, host) for ns in gpu), initial=ends.pop())
        return cls(ends, gpu, sum(host), delivered[:m], batches)

    def land(self, core: EngineCore, recorder: Recorder, replica: int) -> int:
        """See `Leap.land`."""
        m, in_flight = self.skip, core.in_flight
        if m == 0:
            return in_flight[-1].end_ns
        last, depth = in_flight[-1], len(in_flight)
        requests = last.sampled
        after = _contexts(core, self._delivered[:m])
        lookahead, limit = core.lookahead, core.kv.max_model_len
        delivered = self._delivered[:m].sum(axis=0).tolist()
        grown = dict(core.kv.grow_rounds(requests, np.minimum(after + lookahead, limit), delivered))
        allocated = list(accumulate(grown.get(i + 1, 0) for i in range(m)))
        steps = [self._step(last, j, depth, allocated[j - 1]) for j in range(1, m + 1)]
        core.kv.held_tokens += steps[-1].batch.decode_context_sum - last.batch.decode_context_sum
        core.next_step_id += m
        core.spec_stats.proposed += m * last.batch.drafts
        core.spec_stats.add_many(last.batch.drafts // len(requests), self._delivered[:m] - 1)
        for i in range(m):
            step = in_flight.popleft()
            self._deliver(core, step, i, recorder)
            recorder.step(step, replica)
            in_flight.append(steps[i])
        for request, tokens in zip(requests, after[m - 1].tolist(), strict=True):
            request.num_computed_tokens = tokens
        core.scheduler.advance(m)
        if core.checks:
            core.check_integrity()
        return in_flight[-1].end_ns

    def _deliver(self, core: EngineCore, step: Step, i: int, recorder: Recorder) -> None:
        """The commit of a step at E_(i+1)."""
        now, before = self._ends[i], core.committed_ns
        core.committed_ns = now
        on_time, late = 0, list[Late]()
        for request, tokens in zip(step.sampled, self._delivered[i].tolist(), strict=True):
            request.num_tokens += tokens
            if request.first_token_ns < 0:
                request.first_token_ns = now
                if tokens > 1:
                    late.append((request.row, now, tokens))
            elif request.last_token_ns == before and tokens == 1:
                on_time += 1
            else:
                late.append((request.row, request.last_token_ns, tokens))
            request.last_token_ns = now
            step.accepted += tokens - 1
        if on_time:
            recorder.gap(now - before, on_time)
        if late:
            recorder.late(now, late)

    def _step(self, last: Step, j: int, depth: int, allocated: int) -> Step:
        """The j-th step planned in the run, at E_j; it ends at E_(j+depth)."""
        batch, usage = self._steps[j - 1], last.usage
        held = batch.decode_context_sum - last.batch.decode_context_sum
        return Step(
            last.id + j,
            batch,
            last.sampled,
            True,
            Usage(usage.used + held, usage.internal + allocated - held, usage.external, usage.free - allocated),
            drafts=last.drafts,
            planned_ns=self._ends[j - 1],
            start_ns=self._ends[j + depth - 2],
            end_ns=self._ends[j + depth - 1],
            gpu_ns=self._gpu[j - 1],
            host_ns=self._host,
            shares=last.shares,
        )


def _look_ahead(core: EngineCore, steps: int) -> NDArray[np.int64]:
    """Tokens each of the next commits delivers to each request, were there no end; shape (steps, requests)."""
    last, speculator, acceptance = core.in_flight[-1], core.speculator, core.acceptance
    assert speculator is not None
    assert acceptance is not None
    depth, width = speculator.depth(last.batch.drafts // len(last.sampled)), speculator.width
    columns = []
    for request in last.sampled:
        position, left = request.num_output_tokens, request._end_tokens - request.num_tokens
        column: list[int] = []
        while len(column) < steps and left > 0:
            tokens = 1 + acceptance.accepted(request, position, depth, width)
            column.append(tokens)
            position += tokens
            left -= tokens
        columns.append(column)
    rows = min(len(column) for column in columns)
    return np.array([column[:rows] for column in columns], dtype=np.int64).T


def _contexts(core: EngineCore, delivered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Computed tokens of each request once each of the coming plans is made, its steps in flight counted as if all
    their drafts were right; shape as `delivered`."""
    last = core.in_flight[-1]
    computed = np.array([request.num_computed_tokens for request in last.sampled], dtype=np.int64)
    # A commit takes back the drafts that were wrong, the plan adds a step's tokens: what was delivered remains.
    contexts: NDArray[np.int64] = computed + delivered.cumsum(axis=0)
    return contexts


def _batches(like: Batch, contexts: NDArray[np.int64]) -> list[Batch]:
    """A batch of the same shape over each row of contexts."""
    sums = contexts.sum(axis=1).tolist(), (contexts * contexts).sum(axis=1).tolist(), contexts.max(axis=1).tolist()
    return [
        Batch(
            like.linear_tokens,
            [],
            like.decode_count,
            total,
            squares,
            most,
            like.queries_per_sequence,
            like.sampled,
            like.padded_tokens,
            0,
            like.attention,
            0,
            like.drafts,
            like.draft_k,
            total,
        )
        for total, squares, most in zip(*sums, strict=True)
    ]
