"""Core that plans, verifies and commits the steps of one replica. It handles their order, not their time or cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mypy_extensions import mypyc_attr

from servesim.contracts.acceptance import AcceptanceModel
from servesim.contracts.connector import LATER, Connector, Load
from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.kv_events import KVEvent
from servesim.contracts.ledger import Ledger
from servesim.contracts.plan import Plan, PlanContext
from servesim.contracts.request import FINISHED, RUNNING, SWAPPED, Request, State
from servesim.contracts.scheduler import Scheduler
from servesim.contracts.speculator import Speculator
from servesim.engine import drafts
from servesim.engine.checks import PATIENCE, check_integrity, check_progress
from servesim.engine.compose import compose
from servesim.engine.delivery import deliver
from servesim.engine.layout import expand, lay_out
from servesim.engine.listeners import heard_also
from servesim.engine.several import joined
from servesim.errors import PolicyError, UserError
from servesim.records.spec_stats import SpecStats
from servesim.records.step import Late, Step


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineCore:
    """State machine under the clock: requests are added, and steps are planned and committed by id."""

    def __init__(self, scheduler: Scheduler, kv: KVAllocator, check: bool = False) -> None:
        self.scheduler = scheduler
        self.kv = kv
        self.ledger = Ledger(kv)
        self.speculator: Speculator | None = None
        self.acceptance: AcceptanceModel | None = None
        """Acceptance model, set exactly if `speculator` is set."""
        self.in_flight: deque[Step] = deque()
        self.next_step_id = 0
        self.last_plan: Plan | None = None
        self.keeping: dict[Request, None] = {}
        """Requests that have ended but whose memory has not been freed yet."""
        self._copied = 0  # part of `kv.copied_tokens` already charged to steps
        self._empty = 0  # number of successive empty plans
        self.tokens_since_output = 0  # tokens computed since a delivery or departure
        self.patience = PATIENCE  # number of these at which progress is checked
        self.spec_stats = SpecStats()
        self.on_leave: Callable[[Request], None] = lambda request: None
        """Callback for each request that has finished or been rejected, called when its record is complete."""
        self.connector: Connector | None = None
        self.fetched: dict[Request, Load] = {}
        """Requests that hold memory for KV from elsewhere and are not running. In State.LOADING, the KV is on its way
        (since a plan that had them in `Plan.loading`); in WAITING or PREEMPTED, it has arrived; else they have left."""
        self.not_before_ns = 0
        """Earliest start of the next step in ns: until then, memory freed by a preemption is still being copied out."""
        self.stalled_ns = 0
        """Total nanoseconds for which steps waited for such copies."""
        self.on_load: Callable[[Request, int], None] = lambda request, end_ns: None
        """Callback for each request whose KV load begins, called with the time at which to call `loaded`."""
        self.on_gap: Callable[[int, int], None] = lambda ns, count: None
        """Callback for gaps between successive tokens of a request, called with (ns, number of gaps)."""
        self.on_late: Callable[[int, list[Late]], None] = lambda now, late: None
        """Callback for a step's irregular deliveries: all but single tokens after single tokens."""
        self.on_first: Callable[[Request], None] | None = None
        """Callback for each request whose first token is delivered, or None for no callback."""
        self.on_output: Callable[[Request, int], None] | None = None
        """Callback for each request that receives tokens, called with the number of tokens. It is called only if steps
        are taken one by one."""
        self.on_plan: Callable[[int, Plan], None] | None = None
        """Callback for each verified plan, called with its step's id; for a run of known steps, only for the first."""
        self.committed_ns = -1
        """Time in ns at which the last step was committed."""
        self.checks = check
        self.num_forked = 0
        """Number of samples forked from requests that arrived."""
        self.max_queued: int | None = None
        """Maximum number of waiting requests, beyond which newcomers are rejected, or None for no limit."""
        own: Any = scheduler  # read through Any, as mypyc would bind the class attribute
        self.lookahead: int = own.lookahead
        """Number of KV slots that the scheduler reserves ahead per request for drafts."""
        self.shares = kv.shares
        self._oracle = "output_len" in scheduler.needs
        if "output_len" in kv.needs:
            kv.output_len = lambda request: request._end_tokens - request.prompt_len

    def listen(self, on_event: Callable[[KVEvent], None]) -> None:
        """Make the prefix cache also report to `on_event` each block that it stores or removes. Call this before the
        first step. Raise UserError if the cache cannot report them."""
        kv = self.kv
        if kv.shares and "events" not in kv.supports:
            raise UserError(f'kv {kv.name} does not report which blocks it stores ("events" is not in its `supports`)')
        kv.on_event = heard_also(kv.on_event, on_event)

    def step_plainly(self) -> None:
        """Take every step separately, even in fast mode. Call this before the first step."""

    def connect(self, connector: Connector, first: bool = False) -> None:
        """Let requests use KV that was computed remotely. Call this before the first step; a core can have several
        connectors (servesim.engine.several), of which those connected earlier are preferred, or with `first` this
        one. Raise UserError if a policy cannot wait for such KV."""
        scheduler, kv = self.scheduler, self.kv
        if "remote_kv" not in scheduler.supports:
            raise UserError(f"scheduler {scheduler.name} cannot wait for remote KV; use scheduler vllm")
        if kv.shares and "remote_kv" not in kv.supports:
            raise UserError(f"kv {kv.name} cannot reserve memory for remote KV; use kv prefix-hash")
        self.connector = joined(self.connector, connector, first)

    # Arrivals and departures.

    def add(self, request: Request, output_len: int, now: int) -> None:
        """Add a request that arrives now and will deliver `output_len` tokens. Like vLLM's server, reject a request
        that may outgrow `max_model_len`."""
        limit = self.scheduler.limits.max_model_len
        request._end_tokens = request.prompt_len + output_len
        if request.prompt_len + request.max_tokens > limit:
            self._reject(request, now, f"prompt + max_tokens exceeds max_model_len {limit}")
        elif not self.kv.fits(request):
            self._reject(request, now, f"needs more KV memory than the total of {self.kv.capacity_tokens} tokens")
        elif self.max_queued is not None and self._queue_full(request, self.max_queued):
            self._reject(request, now, f"queue full: {self.max_queued} requests wait")
        else:
            self.scheduler.on_arrival(request)

    def _queue_full(self, request: Request, most: int) -> bool:
        """Return whether the queue is too full for one more request, with its samples."""
        parent = request.parent
        if parent is not None and request.sample > 1:
            return parent.members[0].state is State.REJECTED
        others = len(parent.sent) - 1 if parent is not None and request.sample == 1 else 0
        return self.scheduler.num_waiting() + self.num_loading + others >= most

    def abort(self, request: Request, now: int, reason: str = "abort") -> None:
        """Cancel a request that is waiting or running. Do nothing if it has left."""
        if request.state >= State.FINISHED:
            return
        request.reason = reason
        if request.state is State.LOADING:  # its memory is being written until the load ends
            request.state, request.finished_ns = State.ABORTED, now
            self.on_leave(request)
        else:
            self.finish([request], State.ABORTED, now)
        if self.checks:
            self.check_integrity()

    def _reject(self, request: Request, now: int, reason: str) -> None:
        request.state = State.REJECTED
        request.finished_ns = now
        request.reason = reason
        self.on_leave(request)

    def finish(self, requests: list[Request], state: State, now: int) -> None:
        """End requests that are at this replica. Memory that the scheduler still keeps is freed later."""
        self.tokens_since_output = 0  # clients that give up also make room
        for request in requests:
            if request.state is SWAPPED:
                self.kv.drop_swapped(request)
                request._num_computed_tokens = 0
            elif request in self.fetched:
                del self.fetched[request]
                self.kv.free(request)
        released = self.scheduler.on_finish(requests)
        keeping, kv = self.keeping, self.kv
        for request in [*requests, *keeping] if keeping else requests:
            if kv.slots(request):  # a static batch keeps the memory of finished rows until it ends
                keeping[request] = None
            else:
                if keeping:
                    keeping.pop(request, None)
                self.ledger.release(request._num_computed_tokens)
        for request in requests:
            request.state = state
            if state is FINISHED:
                capped = request._num_tokens - request.prompt_len >= request.max_tokens and not request._stops
                request.reason = "length" if capped else "stop"
        for request in requests if released is None else released:
            request.finished_ns = now
            self.on_leave(request)

    # Planning.

    def plan(self, now: int) -> Step | None:
        """Plan the next step and put it in flight. Return None if the scheduler has nothing to do."""
        plan = self.last_plan = self._ask(self.open(now), now)
        for request in plan.rejected:
            self._reject(request, now, request.reason)
        for request in plan.preempted:
            for planned in self.in_flight:
                if request.state is not RUNNING and request in planned.sampled:
                    planned.stale = (planned.stale or set()) | {request}
        if self.connector is not None and plan.preempted:
            self.not_before_ns = max(self.not_before_ns, self.connector.preempted(plan.preempted))
        for request in plan.loading:
            if (end_ns := self.fetched[request].end_ns) != LATER:
                self.on_load(request, end_ns)
        step = self.enter(plan, now)
        if step is not None:
            self._empty = 0
            self.tokens_since_output += step.batch.linear_tokens
            if self.tokens_since_output > self.patience:
                check_progress(self, now)
            self.in_flight.append(step)
            self.next_step_id += 1
            if self.on_plan is not None:
                self.on_plan(step.id, plan)
        if self.checks:
            self.check_integrity()
        return step

    def open(self, now: int) -> PlanContext:
        """Begin the transaction in which the next step is planned."""
        return PlanContext(
            self.scheduler.name,
            now,
            Plan(self.next_step_id),
            self.kv,
            self.ledger,
            self.scheduler.limits.async_scheduling,
            self._oracle,
            self.connector,
            self.fetched,
        )

    def _ask(self, ctx: PlanContext, now: int) -> Plan:
        policy: Any = self.scheduler
        plan = ctx.plan
        returned = policy.plan(ctx)  # any type
        own: bool = returned is plan
        if not own:
            said = f"Plan(step_id={returned.step_id}, ...)" if isinstance(returned, Plan) else repr(returned)
            raise PolicyError(f"{self.scheduler.name} at {now} ns: plan returns {said}, not ctx.plan")
        if not isinstance(policy.running, list):
            raise PolicyError(f"{self.scheduler.name} at {now} ns: running is {policy.running!r}, not a list")
        return plan

    def enter(self, plan: Plan, now: int) -> Step | None:
        """Verify a plan, advance its requests, and return the step that it makes, or None if it is empty."""
        if not plan._tokens:
            return None
        asynchronous = self.scheduler.limits.async_scheduling
        batch, sampled = compose(plan, self.kv, f"{self.scheduler.name} at {now} ns", asynchronous)
        self.charge(plan, batch, sampled, now)
        step = Step(plan.step_id, batch, sampled, self.kv.usage(), preempted=len(plan.preempted), planned_ns=now)
        if plan.drafts:
            drafts.note(step, plan)
        return step

    def charge(self, plan: Plan, batch: Batch, sampled: list[Request], now: int, unnamed: int = 0) -> None:
        """Record in the ledger the tokens that a plan's batch computes, and in the batch its extra costs (copies,
        padding, drafts). `unnamed` is the number of decoding requests in the batch that the plan does not name."""
        self.ledger.hold(batch.linear_tokens)
        copied: Any = self.kv.copied_tokens
        if copied != self._copied:
            if not isinstance(copied, int) or copied < self._copied:
                raise PolicyError(
                    f"{self.kv.name} at {now} ns: copied_tokens is {copied!r}, not an int that never decreases"
                )
            batch.bytes_copied = (copied - self._copied) * self.kv.memory.bytes_per_token
            self._copied = copied
        if plan.layout != "mixed":
            lay_out(batch, plan, unnamed)
        if self.speculator is not None and sampled:
            if plan.drafts and self.speculator.expands:
                expand(batch, plan)
            drafts.decide(self, batch, sampled)

    def moved(self) -> bool:
        """Return whether the last plan, which was empty, changed the queues, so that the next may not be empty. Return
        False once there have been as many empty plans in a row as there are requests to move."""
        self._empty += 1
        assert self.last_plan is not None
        return self.last_plan.changes_queues and self._empty <= 2 * self.num_unfinished + 2

    # Committing.

    def commit(self, now: int, tokens: Mapping[Request, int] | None = None) -> None:
        """Deliver the outputs of the oldest step in flight.

        `tokens` gives the number of tokens that each request sampled (accepted drafts + 1), overriding the acceptance
        model. Requests missing from it sampled one token.
        """
        step = self.in_flight.popleft()
        before = self.committed_ns
        self.committed_ns = now
        finished, kept = deliver(self, step, before, now, tokens)
        self.close(step, finished, kept, now)

    def close(self, step: Step, finished: list[Request], kept: list[Request], now: int) -> None:
        """Notify all policies that a step has been delivered. `finished` are the requests that ended with it; `kept`
        are those that sampled in it and have the same state as when it was planned."""
        if self.shares:
            publish = self.kv.publish
            for request in kept:
                publish(request, request._num_computed_tokens - request._num_output_placeholders)
        if self.speculator is not None:
            if step.verified:
                self.speculator.observe(step.verified)
            if not self.scheduler.limits.async_scheduling:
                drafts.propose(self, step.batch.draft_k, kept)
        self.scheduler.commit(step.id, kept)
        if finished:
            self.finish(finished, FINISHED, now)
        if self.checks:
            self.check_integrity()

    @property
    def num_unfinished(self) -> int:
        """Number of requests that are waiting or running here."""
        return self.scheduler.num_waiting() + self.num_loading + len(self.scheduler.running)

    @property
    def num_loading(self) -> int:
        """Number of requests that are waiting for remote KV."""
        return sum(request.state is State.LOADING for request in self.fetched) if self.fetched else 0

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the scheduler or the allocator, or one between them, is broken."""
        check_integrity(self)
