"""Plans, verifies and commits the steps of one replica. Knows order, not time or cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.contracts.scheduler import Scheduler
from servesim.contracts.speculator import Speculator
from servesim.engine.compose import compose
from servesim.engine.layout import expand, lay_out
from servesim.engine.lockstep import Lockstep
from servesim.engine.step import Late, SpecStats, Step
from servesim.engine.verification import hand_out as hand_out_verified
from servesim.errors import PolicyError

PATIENCE = 1 << 16
"""Tokens computed without one delivered before anyone asks whether the policy gets anywhere."""


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineCore:
    """The state machine under the clock: requests come in, steps are planned and committed by id."""

    def __init__(self, scheduler: Scheduler, kv: KVAllocator, check: bool = False) -> None:
        self.scheduler = scheduler
        self.kv = kv
        self.speculator: Speculator | None = None
        self.acceptance: AcceptanceModel | None = None
        """The two come together."""
        self.in_flight: deque[Step] = deque()
        self.lockstep: Lockstep | None = None
        self.next_step_id = 0
        self.last_plan: Plan | None = None
        self._keeping: dict[Request, None] = {}  # have ended, and their memory is not free yet
        self._empty = 0  # plans in a row that came out empty
        self.fruitless = 0  # tokens computed since the last one was delivered
        self._patience = PATIENCE
        self.spec_stats = SpecStats()
        self.on_leave: Callable[[Request], None] = lambda request: None
        """Called for each request that has finished or was rejected, its record complete."""
        self.on_gap: Callable[[int, int], None] = lambda ns, count: None
        """Called with (ns, how often): gaps between successive tokens of a request."""
        self.on_late: Callable[[int, list[Late]], None] = lambda now, late: None
        """Called with what a step delivered otherwise than one token to a request that got one from the step before."""
        self.committed_ns = -1
        """When the last step was committed."""
        self.checks = check
        self.num_forked = 0
        """Samples forked off requests that arrived."""
        self.max_queued: int | None = None
        """Requests that may wait; one that arrives beyond is rejected. None: any number."""
        says: Any = scheduler  # of its class or of itself
        self.lookahead: int = says.lookahead
        """KV slots the scheduler keeps ahead per request for drafts."""
        self._shares = kv.shares
        self._oracle = "output_len" in scheduler.needs
        if "output_len" in kv.needs:
            kv.output_len = lambda request: request._end_tokens - request.prompt_len

    def keep_lockstep(self, depth: int) -> None:
        """From now on count requests that decode together, if scheduler and allocator know how. At most `depth`
        steps are in flight, and each must hold every request that runs."""
        if self.speculator is None and self.scheduler.keeps_lockstep() and self.kv.keeps_lockstep():
            self.lockstep = Lockstep(self.kv, self.in_flight, self.scheduler.limits.async_scheduling, depth)

    def add(self, request: Request, output_len: int, now: int) -> None:
        """A request arrives now; it will deliver `output_len` tokens. One that may outgrow `max_model_len` is
        rejected, as vLLM's server does."""
        limit = self.scheduler.limits.max_model_len
        request._end_tokens = request.prompt_len + output_len
        if request.prompt_len + request.max_tokens > limit:
            self._reject(request, now, f"prompt + max_tokens exceeds max_model_len {limit}")
        elif not self.kv.fits(request):
            self._reject(request, now, f"needs more KV memory than the {self.kv.capacity_tokens} tokens there are")
        elif self.max_queued is not None and self._queue_full(request, self.max_queued):
            self._reject(request, now, f"queue full: {self.max_queued} requests wait")
        else:
            self.scheduler.on_arrival(request)

    def _queue_full(self, request: Request, most: int) -> bool:
        """Whether one more would be too many; samples of one request are taken or rejected together."""
        parent = request.parent
        if parent is not None and request.sample > 1:
            return parent.members[0].state is State.REJECTED
        others = len(parent.sent) - 1 if parent is not None and request.sample == 1 else 0
        return self.scheduler.num_waiting() + others >= most

    def plan(self, now: int) -> Step | None:
        """Plan the next step and put it in flight; None if the scheduler has nothing to do."""
        lockstep = self.lockstep
        ctx = PlanContext(self.scheduler.name, now, self.next_step_id, self.kv, self._oracle, lockstep)
        policy: Any = self.scheduler
        returned = policy.plan(ctx)  # whatever that is
        plan = ctx.plan
        if returned is not plan:
            raise PolicyError(f"{self.scheduler.name} at {now} ns: plan returns {returned!r}, not ctx.plan")
        if not isinstance(policy.running, list):
            raise PolicyError(f"{self.scheduler.name} at {now} ns: running is {policy.running!r}, not a list")
        if lockstep is not None and plan.together != len(lockstep.members):
            raise PolicyError(f"{self.scheduler.name} at {now} ns: plan leaves out requests in lockstep")
        for request in plan.rejected:
            self._reject(request, now, request.reason)
        for request in plan.preempted:
            for step in self.in_flight:
                if request.state is not State.RUNNING and request in step.sampled:
                    step.stale = (step.stale or set()) | {request}
        self.last_plan = plan
        if not plan.tokens and not plan.together:
            if self.checks:
                self.check_integrity()
            return None
        step = self._enter(plan, now)
        self._empty = 0
        self.fruitless += step.batch.linear_tokens
        if self.fruitless > self._patience:
            self._check_progress(now)
        self.in_flight.append(step)
        self.next_step_id += 1
        if lockstep is not None:
            lockstep.step_id = self.next_step_id
            lockstep.admit_following()
        if self.checks:
            self.check_integrity()
        return step

    def _check_progress(self, now: int) -> None:
        """Everything in the house can be computed once before a token must come out. PolicyError when it has been many
        times over: requests are preempted and computed again for ever."""
        here = [*self.scheduler.running, *self.scheduler.waiters()]
        self._patience = PATIENCE + 4 * sum(r.num_tokens for r in here)
        if self.fruitless > self._patience:
            raise PolicyError(
                f"{self.scheduler.name} at {now} ns: on kv {self.kv.name} {self.fruitless} tokens were computed since "
                f"the last one was delivered; {len(self.scheduler.running)} requests run, "
                f"{self.scheduler.num_waiting()} wait, {self.kv.usage().free} of {self.kv.capacity_tokens} tokens are "
                f"free: they preempt each other for ever"
            )

    def moved(self) -> bool:
        """Whether the last plan, empty, changed the queues: the next may not be. False once as many plans in a row
        came out empty as there are requests to move."""
        self._empty += 1
        assert self.last_plan is not None
        return self.last_plan.changes_queues and self._empty <= 2 * self.num_unfinished + 2

    def _enter(self, plan: Plan, now: int) -> Step:
        """Verify a plan, advance its requests, and describe the batch it makes."""
        drafts = plan.drafts
        batch, sampled = compose(plan, self.kv, self.lockstep, self.scheduler.name, now)
        self.kv.held_tokens += batch.linear_tokens
        if self.kv.copied_tokens:
            copied: Any = self.kv.copied_tokens
            if not isinstance(copied, int):
                raise PolicyError(f"{self.kv.name} at {now} ns: copied_tokens is {copied!r}, not an int")
            batch.bytes_copied = copied * self.kv.memory.bytes_per_token
            self.kv.copied_tokens = 0
        if plan.layout != "mixed":
            lay_out(batch, plan)
        if self.speculator is not None and sampled:
            if drafts and self.speculator.expands:
                expand(batch, plan)
            self._draft(batch, sampled)
        steady = not batch.prefill and not plan.changes_queues and not batch.bytes_copied
        if self.speculator is not None:
            steady = steady and self.speculator.steady() and bool(drafts) == bool(batch.draft_k)
        usage, preempted = self.kv.usage(), len(plan.preempted)
        step = Step(plan.step_id, batch, sampled, steady, usage, preempted=preempted, planned_ns=now)
        step.together = plan.together
        if drafts:
            step.drafts = drafts
        if drafts and (plan.admitted or plan.resumed):
            step.dummies = frozenset(plan.admitted + plan.resumed)
        return step

    def _draft(self, batch: Batch, sampled: list[Request]) -> None:
        """Decide how many drafts follow this step. Planned ahead, as many are assumed for the next plan at once."""
        assert self.speculator is not None
        k = self.speculator.limit(batch)
        if not 0 <= k <= self.speculator.max_drafts:
            raise PolicyError(f"speculation {self.speculator.name}: limit returns {k}, not 0 to its max_drafts")
        batch.draft_k = k
        if self.scheduler.limits.async_scheduling:
            nodes = self.speculator.verified(k)
            self.spec_stats.proposed += nodes * len(sampled)
            for request in sampled:
                request.num_draft_tokens = nodes

    def commit(self, now: int, tokens: Mapping[Request, int] | None = None) -> None:
        """Deliver the outputs of the oldest step in flight.

        `tokens` says how many each request sampled (accepted drafts + 1); one where it is silent.
        """
        step = self.in_flight.popleft()
        before = self.committed_ns
        self.note_commit(now)
        if self.lockstep is not None:
            self.lockstep.committed += 1
        if step.sampled:
            finished, kept = self.hand_out(step, before, now, tokens)
        else:
            finished, kept = [], []
            if step.together:
                self.on_gap(now - before, step.together)
        if self.lockstep is not None:
            for request in finished:
                if request in self.lockstep.members:  # it joined, but the steps together are for nothing
                    self.lockstep.leave(request)
            if step.together:
                self.fruitless = 0
                if ended := self.lockstep.ended(step.id):
                    finished += ended
                    finished.sort(key=lambda r: r._order)
        if self._shares:
            publish = self.kv.publish
            for request in kept:
                publish(request, request.num_computed_tokens - request.num_output_placeholders)
        if self.speculator is not None:
            if step.verified:
                self.speculator.observe(step.verified)
            if not self.scheduler.limits.async_scheduling:
                self._propose(step.batch.draft_k, kept)
        self.scheduler.commit(step.id, kept)
        self._finish(finished, State.FINISHED, now)
        if self.checks:
            self.check_integrity()

    def commit_lockstep(self, now: int, retired: list[Request]) -> None:
        """Commit a step of requests in lockstep alone, delivered already and no more in flight. `retired`: who have
        left the lockstep, but not before they were to get their last token from it."""
        lockstep = self.lockstep
        assert lockstep is not None
        lockstep.committed += 1
        for request in retired:
            request.num_output_placeholders -= 1
            request.num_tokens += 1
            request.last_token_ns = now
            if self._shares:
                self.kv.publish(request, request.num_computed_tokens - request.num_output_placeholders)
        finished = retired + lockstep.ended(lockstep.committed - 1)
        if len(finished) > 1:
            finished.sort(key=lambda r: r._order)
        self._finish(finished, State.FINISHED, now)
        if self.checks:
            self.check_integrity()

    def note_commit(self, now: int) -> None:
        """The last step committed so far was done at this instant."""
        self.committed_ns = now
        if self.lockstep is not None:
            self.lockstep.committed_ns = now

    def hand_out(
        self, step: Step, before: int, now: int, tokens: Mapping[Request, int] | None = None
    ) -> tuple[list[Request], list[Request]]:
        """Deliver what a step sampled, the one `before` it having been committed at that time. Returns who ended
        among those that stand for themselves, and who of them still runs."""
        if step.drafts and tokens is None and self.speculator is not None:
            return hand_out_verified(self, step, before, now)
        kept: list[Request] = []
        finished: list[Request] = []
        on_time = step.together  # most get their last token from the step before: report the gap once
        late: list[Late] = []
        forked: list[Request] = []  # whose prompt is computed, and of which there are to be several
        plain = tokens is None and not step.drafts and step.stale is None
        ended = State.FINISHED
        for request in step.sampled:
            if request.state >= ended:
                continue  # it ended with an earlier step; this one's token is thrown away
            if plain:
                request.num_output_placeholders -= 1
                request.num_tokens += 1
                delivered = 1
                kept.append(request)
            else:
                stale = step.stale is not None and request in step.stale
                sampled = 1 if tokens is None else tokens.get(request, 1)
                if not stale:
                    kept.append(request)
                delivered = self._deliver(step, request, sampled, stale)
                if delivered == 0:
                    continue
            if request.first_token_ns < 0:
                request.first_token_ns = now
                if request.parent is not None and request.parent.unforked:
                    forked.append(request)
                if delivered > 1:
                    late.append((request.row, now, delivered))
            elif request.last_token_ns == before and delivered == 1:
                on_time += 1
            else:
                late.append((request.row, request.last_token_ns, delivered))
            request.last_token_ns = now
            self.fruitless = 0
            if request.num_tokens >= request._end_tokens:
                finished.append(request)
        if on_time:
            self.on_gap(now - before, on_time)
        if late:
            self.on_late(now, late)
        for request in forked:
            finished += self.fork(request, now)
        return finished, kept

    def fork(self, request: Request, now: int) -> list[Request]:
        """The samples of a request go on from its prompt by themselves, each with a first token of its own; those that
        end with that. One that was preempted meanwhile has nothing to share: all compute the prompt again."""
        parent = request.parent
        assert parent is not None
        samples, outputs = parent.members[len(parent.sent) :], parent.outputs[len(parent.sent) :]
        parent.unforked = 0
        self.num_forked += len(samples)
        running = request.state is State.RUNNING
        for sample, output_len in zip(samples, outputs, strict=True):
            sample._end_tokens = sample.prompt_len + output_len
            sample.num_tokens = sample.prompt_len + 1
            sample.scheduled_ns, sample.first_token_ns, sample.last_token_ns = request.scheduled_ns, now, now
            sample.hit_tokens = sample.prompt_len
            sample.state = State.RUNNING if running else State.PREEMPTED
            if running:
                sample.num_computed_tokens = request.num_computed_tokens
                self.kv.fork(request, sample)
                self.kv.held_tokens += sample.num_computed_tokens
        self.scheduler.on_fork(request, samples)
        return [sample for sample in samples if sample.num_tokens >= sample._end_tokens]

    def _deliver(self, step: Step, request: Request, sampled: int, stale: bool) -> int:
        """Account for what a request sampled in a step; how many tokens that makes."""
        drafts = step.drafts.get(request, 0) if step.drafts else 0
        request.num_output_placeholders -= 1 + drafts
        if drafts and sampled:
            self.spec_stats.add(drafts, sampled - 1)
        delivered = min(sampled, request._end_tokens - request.num_tokens)
        step.accepted += max(delivered - 1, 0)
        void = drafts - max(sampled - 1, 0) + sampled - delivered
        if void and not stale:
            request.num_computed_tokens -= void
            self.kv.held_tokens -= void
            self.kv.rollback(request, void)
        request.num_tokens += delivered
        return delivered

    def _propose(self, k: int, requests: list[Request]) -> None:
        """Attach drafts to the requests that have just got a token."""
        assert self.speculator is not None
        assert self.acceptance is not None
        for request in requests:
            found = self.acceptance.available(request, request.num_output_tokens, k) if k else 0
            request.num_draft_tokens = self.speculator.verified(found)
            self.spec_stats.proposed += request.num_draft_tokens

    def abort(self, request: Request, now: int, reason: str = "abort") -> None:
        """Cancel a request that waits or runs; nothing happens to one that has left."""
        if request.state >= State.FINISHED:
            return
        request.reason = reason
        if self.lockstep is not None and request in self.lockstep.members:
            self.lockstep.leave(request)
        self._finish([request], State.ABORTED, now)
        if self.checks:
            self.check_integrity()

    def _finish(self, requests: list[Request], state: State, now: int) -> None:
        if not requests:
            return
        for request in requests:
            if request.state is State.SWAPPED:
                self.kv.drop_swapped(request)
                request.num_computed_tokens = 0
        released = self.scheduler.on_finish(requests)
        keeping, kv = self._keeping, self.kv
        for request in [*requests, *keeping] if keeping else requests:
            if kv.slots(request):  # a static batch keeps its finished rows' memory to the end
                keeping[request] = None
            else:
                keeping.pop(request, None)
                kv.held_tokens -= request.num_computed_tokens
        for request in requests:
            request.state = state
            if state is State.FINISHED:
                capped = request.num_tokens - request.prompt_len >= request.max_tokens and not request._stops
                request.reason = "length" if capped else "stop"
        for request in requests if released is None else released:
            request.finished_ns = now
            self.on_leave(request)

    def _reject(self, request: Request, now: int, reason: str) -> None:
        request.state = State.REJECTED
        request.finished_ns = now
        request.reason = reason
        self.on_leave(request)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run here."""
        return self.scheduler.num_waiting() + len(self.scheduler.running)

    def check_integrity(self) -> None:
        """Invariants of scheduler and allocator, and between them."""
        if self.lockstep is not None:
            self.lockstep.check_integrity()
            self.lockstep.refresh()
        self.scheduler.check_integrity()
        held = sum(r.num_computed_tokens for r in [*self.scheduler.running, *self._keeping])
        assert self.kv.held_tokens == held, f"held tokens {self.kv.held_tokens}, should be {held}"
        self.kv.check_integrity()
        for request in self.scheduler.running:
            assert self.kv.slots(request) >= request.num_computed_tokens, f"{request} has too little memory"
        for request in self.scheduler.waiters():
            assert self.kv.slots(request) == 0, f"{request} waits and holds memory"
            swapped = request.state is State.SWAPPED
            assert swapped or request.num_computed_tokens == 0, f"{request} waits and has computed tokens"
