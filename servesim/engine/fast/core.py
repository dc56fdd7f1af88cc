"""State machine of a replica that counts requests that decode together instead of listing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.connector import Connector
from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.kv_events import KVEvent
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import FINISHED, Request, State
from servesim.contracts.scheduler import Scheduler
from servesim.engine import drafts
from servesim.engine.compose import compose
from servesim.engine.core import EngineCore
from servesim.engine.delivery import deliver
from servesim.engine.fast.context import FastContext
from servesim.engine.fast.lockstep import Lockstep
from servesim.engine.fast.memory import lockstep_memory
from servesim.engine.fast.step import PAUSE, FastStep
from servesim.engine.fast.verification import deliver_verified
from servesim.engine.fast.verify_again import tokens_again, verify_again
from servesim.engine.layout import lay_out
from servesim.records.step import NO_DRAFTS, Step

MOST = 1024
"""Maximum number of steps priced in one call."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FastCore(EngineCore):
    """Core that plans and commits exactly as EngineCore does, to the nanosecond, and determines which plans need not be
    made."""

    def __init__(self, scheduler: Scheduler, kv: KVAllocator, check: bool = False) -> None:
        super().__init__(scheduler, kv, check)
        self.memory = lockstep_memory(kv)
        """Lockstep interface of the allocator, or None if it has none."""
        self.lockstep: Lockstep | None = None
        self.on_late_together: Callable[[int, int, list[int]], None] = lambda now, since, rows: None
        """Callback for requests that got one token at `since` and the next one now, called with (now, since, rows)."""
        self._context: FastContext | None = None
        self._in_python = hasattr(scheduler, "__dict__")
        self._before: dict[str, Any] | None = None  # attributes of a Python scheduler before the plan
        self.stands = False
        """Whether the last plan served all running requests and read nothing that changes from step to step."""
        self.pure = False
        """Whether the last plan did nothing but serve those requests."""
        self.rests = False
        """Whether the last plan was empty, and so are the next ones until a request arrives."""
        self.until = 0
        """Step id at which the scheduler must plan again."""
        self.has_state = False
        """Whether the scheduler must also plan again after requests end."""
        self.refused = False
        """Whether a request was refused for lack of memory."""
        told: Any = type(scheduler).commit
        self.hears_commits = told is not Scheduler.commit
        """Whether the scheduler must be told of each token, and may change with it."""
        self.tokens_again = 0
        """See `verify_again.tokens_again`."""
        self.listened = False
        """Whether the prefix cache has a listener, to which memory in lockstep reports at the right times."""

    def listen(self, on_event: Callable[[KVEvent], None]) -> None:
        """See `EngineCore.listen`. Memory that publishes blocks only when they are read is then stepped plainly, as for
        an allocator without a fast class; so is memory with a connector, whose own memory follows late."""
        super().listen(on_event)
        self.listened, memory = True, self.memory
        if memory is None or self.lockstep is None or self.connector is not None or not memory.tell():
            self.step_plainly()

    def step_plainly(self) -> None:
        if self.memory is not None:
            self.memory.look = self.memory.note
        self.memory = self.lockstep = None

    def keep_lockstep(self, depth: int) -> None:
        """Start counting requests that decode together, if memory supports it. At most `depth` steps are in flight."""
        kv, scheduler = self.kv, self.scheduler
        if self.speculator is not None or self.lookahead or self.hears_commits:
            return
        if self.memory is not None:
            steps: Any = self.in_flight  # all steps are FastSteps from here on
            self.lockstep = Lockstep(kv, self.memory, steps, scheduler.limits.async_scheduling, depth)

    def connect(self, connector: Connector, first: bool = False) -> None:
        super().connect(connector, first)
        if self.listened or not connector.follow(self.lockstep):
            self.step_plainly()

    def plan(self, now: int) -> Step | None:
        if self.in_flight and self.is_next_empty():
            return None
        known, step = verify_again(self, now) if self.tokens_again else (False, None)
        return step if known else super().plan(now)

    def open(self, now: int) -> PlanContext:
        if self.lockstep is not None:
            self.lockstep.due = 0
        own: Any = self.scheduler
        self._before = own.__dict__.copy() if self._in_python else None
        self._context = FastContext(self, now)
        return self._context

    def enter(self, plan: Plan, now: int) -> Step | None:
        lockstep, ctx = self.lockstep, self._context
        assert ctx is not None
        looked = ctx.has_looked() or (not ctx.has_state and self._state_moved())
        if lockstep is None:
            step = super().enter(plan, now)
            all_served = ctx.served and not ctx.num_left and len(plan._tokens) == len(self.scheduler.running)
            self._note(ctx, step is not None and all_served and not (looked or ctx.idle), True)
            self.tokens_again = tokens_again(self, ctx, step)
            if self.memory is not None and step is not None:
                for request in step.sampled:
                    request._keeper = self.memory
            return step
        if plan.layout == "recompute":
            lockstep.dissolve(plan)
        lockstep.end_plan(plan)
        n = lockstep.due
        pauses = n == 0 and len(lockstep.members) > 0
        self._note(ctx, ctx.served and not (pauses or looked or ctx.idle), not plan._tokens)
        self.rests = False
        if not n and not plan._tokens:
            self.stands = False
            self.rests = not (looked or ctx.has_state or plan.changes_queues or self.num_unfinished)
            return None
        sampled: list[Request] = []
        if plan._tokens:
            asynchronous = self.scheduler.limits.async_scheduling
            batch, sampled = compose(plan, self.kv, f"{self.scheduler.name} at {now} ns", asynchronous)
            if n:
                lockstep.advance(1)
                lockstep.add_to(batch)
        else:
            batch = lockstep.next_batch(plan.attention)
            lockstep.advance(1)
        self.charge(plan, batch, sampled, now, n)
        self.pure = self.pure and not batch.bytes_copied
        step = FastStep(plan.step_id, batch, sampled, self.kv.usage(), NO_DRAFTS, len(plan.preempted), now)
        step.together, step.turn = n, PAUSE if pauses else lockstep.turn
        if plan.drafts:
            drafts.note(step, plan)
        if pauses:
            lockstep.paused += 1
        else:
            lockstep.turn += 1
            lockstep.admit_following()
        return step

    def _state_moved(self) -> bool:
        """Return whether the plan changed the scheduler's own state as far as is visible from outside, i.e. whether an
        attribute is a different object or number."""
        own: Any = self.scheduler
        if self._before is None:
            return False
        try:
            return bool(own.__dict__ != self._before)
        except Exception:  # comparing custom attributes, such as arrays, may not give a single bool
            return True

    def _note(self, ctx: FastContext, stands: bool, alone: bool) -> None:
        """Record what a plan implies for the next one. `alone` means that the plan holds only requests served in
        bulk."""
        self.stands = stands
        self.pure = alone and not ctx.plan.changes_queues
        self.until, self.has_state, self.refused = ctx.until, ctx.has_state, ctx.refused

    def plans_known(self, past: int) -> int:
        """Return the maximum number of further steps whose plans are known to serve all requests in lockstep and
        nothing else. `past`: 1 if steps were committed since the last plan, else 0."""
        lockstep, plan, scheduler = self.lockstep, self.last_plan, self.scheduler
        assert lockstep is not None
        assert plan is not None
        if not self.stands or lockstep.apart or lockstep.paused or len(lockstep.queue) != len(scheduler.running):
            return 0
        after_it = not past and self.pure
        if past and self.has_state:
            return 0
        if self.refused and self.memory is not None and not self.memory.only_takes():
            return 0
        if not after_it and (scheduler.num_waiting() or plan.layout != "mixed"):
            return 0
        if len(lockstep.members) > lockstep.most:
            return 0
        most = self.until - self.next_step_id
        return MOST if most > MOST else most

    def plan_known(self, now: int) -> Step | None:
        """Plan the next step without the scheduler if its plan is known to serve all requests in lockstep and nothing
        else; otherwise return None, with nothing done. Steps are committed one by one."""
        lockstep, memory = self.lockstep, self.memory
        if lockstep is None or memory is None or not lockstep.members or self.connector is not None:
            return None
        if self.plans_known(1) < 1 or lockstep.steps_until_change(len(self.in_flight) + 1)[0] < 1:
            return None
        if memory.steps_until_full(lockstep.turn, 1, lockstep.free) < 1:
            return None
        kept = memory.extend(lockstep.turn, lockstep.committed)
        assert kept
        batch = self.next_batch()
        lockstep.advance(1)
        self.ledger.hold(batch.sampled)
        step = FastStep(self.next_step_id, batch, [], self.kv.usage(), NO_DRAFTS, 0, now)
        step.together, step.turn = batch.sampled, lockstep.turn
        lockstep.turn += 1
        self.in_flight.append(step)
        self.next_step_id += 1
        if self.checks:
            self.check_integrity()
        return step

    def is_next_empty(self) -> bool:
        """Return whether the next plan is known to be empty: nothing waits, and all running requests have their last
        token in flight."""
        lockstep = self.lockstep
        if lockstep is None or self.last_plan is None or self.has_state or self.scheduler.num_waiting():
            return False
        return lockstep.all_retire() and self.plans_known(1) > 0

    def rest(self, plans: int) -> None:
        """Account for further empty plans, which are not made."""
        self._empty += plans

    def next_batch(self) -> Batch:
        """Return the batch of the next step, assuming that it consists of all requests in lockstep."""
        lockstep, plan = self.lockstep, self.last_plan
        assert lockstep is not None
        assert plan is not None
        batch = lockstep.next_batch(plan.attention)
        if plan.layout != "mixed":
            lay_out(batch, plan, len(lockstep.members), 1)
        return batch

    def commit(self, now: int, tokens: Mapping[Request, int] | None = None) -> None:
        step = self.in_flight.popleft()
        finished, kept = self.deliver(step, self.committed_ns, now, tokens)
        lockstep = self.lockstep
        if lockstep is not None:
            assert isinstance(step, FastStep)
            if self.listened and self.memory is not None:
                self.memory.turn_committed(lockstep.committed)
            for request in finished:
                if request in lockstep.members:  # it had joined, but its turns have no effect
                    lockstep.leave(request)
            if step.together and (ended := lockstep.ended(step.turn)):
                finished += ended
                finished.sort(key=lambda r: r._order)
        self.close(step, finished, kept, now)

    def deliver(
        self, step: Step, before: int, now: int, tokens: Mapping[Request, int] | None = None
    ) -> tuple[list[Request], list[Request]]:
        """Deliver the tokens that a step sampled, including those of requests in lockstep. The step before it was
        committed at `before`. Return the same lists as `delivery.deliver`, but without members."""
        self.committed_ns = now
        lockstep = self.lockstep
        if lockstep is None:
            if step.drafts and tokens is None and self.speculator is not None:
                return deliver_verified(self, step, before, now)
            return deliver(self, step, before, now, tokens)
        assert isinstance(step, FastStep)
        if step.turn == PAUSE:
            lockstep.paused -= 1
        else:
            if step.together:
                self.tokens_since_output = 0
                if lockstep.committed_ns == before:
                    self.on_gap(now - before, step.together)
                else:
                    rows, late = lockstep.late(step.turn, before)
                    if rows:
                        self.on_late_together(now, lockstep.committed_ns, rows)
                    if late:
                        self.on_late(now, late)
                    if on_time := step.together - len(rows) - len(late):
                        self.on_gap(now - before, on_time)
            lockstep.committed += 1
            lockstep.committed_ns = now
        lockstep.last_ns = now
        return deliver(self, step, before, now, tokens) if step.sampled else ([], [])

    def commit_run(self, now: int, retired: list[Request]) -> None:
        """Commit a step of lockstep requests only, which is already delivered and no longer in flight. `retired` are
        the requests that have left the lockstep but still get their last token from this step."""
        lockstep = self.lockstep
        assert lockstep is not None
        lockstep.committed += 1
        for request in retired:
            request._num_output_placeholders -= 1
            request._num_tokens += 1
            request._last_token_ns = now
            if self.shares:
                self.kv.publish(request, request._num_computed_tokens - request._num_output_placeholders)
        finished = retired + lockstep.ended(lockstep.committed - 1)
        if finished:
            if len(finished) > 1:
                finished.sort(key=lambda r: r._order)
            self.finish(finished, FINISHED, now)
        if self.checks:
            self.check_integrity()

    def note_commit(self, now: int) -> None:
        """Record that the last committed turn ended at this instant."""
        self.committed_ns = now
        if self.lockstep is not None:
            self.lockstep.committed_ns = self.lockstep.last_ns = now

    def abort(self, request: Request, now: int, reason: str = "abort") -> None:
        if self.lockstep is not None and request in self.lockstep.members:
            self.lockstep.leave(request)
        super().abort(request, now, reason)

    def finish(self, requests: list[Request], state: State, now: int) -> None:
        if self.lockstep is not None:
            self.lockstep.forget(requests)
        super().finish(requests, state, now)

    def check_integrity(self) -> None:
        if self.lockstep is not None:
            self.lockstep.check_integrity()
        super().check_integrity()
