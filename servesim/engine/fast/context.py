"""Planning transaction that serves, in bulk, requests that decode together.

It also records what the scheduler reads. A plan depends on the queues and on the values that the scheduler reads: the
clock, the counters of requests, and memory. If the scheduler read nothing that changes from step to step, and served
nothing but decodes, the next plan is the same and need not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servesim.contracts.kv import Hit
from servesim.contracts.plan import NO_END, Plan, PlanContext
from servesim.contracts.request import Request, State
from servesim.engine.fast.lockstep import Lockstep

if TYPE_CHECKING:
    from servesim.engine.fast.core import FastCore


@dataclass(slots=True, init=False)
class FastPlan(Plan):
    """Plan that lists the members of the lockstep only when the list is read."""

    lockstep: Lockstep | None

    def __init__(self, step_id: int, lockstep: Lockstep | None = None) -> None:
        Plan.__init__(self, step_id)  # a class with slots is made anew, so `super` knows only the first
        self.lockstep = lockstep

    @property
    def tokens(self) -> dict[Request, int]:
        """See `Plan.tokens`."""
        lockstep = self.lockstep
        if lockstep is not None and lockstep.due:
            lockstep.dissolve(self)
        return self._tokens


class FastContext(PlanContext):
    """Plan context that also handles requests in lockstep."""

    def __init__(self, core: FastCore, now: int) -> None:
        scheduler, lockstep, memory = core.scheduler, core.lockstep, core.memory
        super().__init__(
            scheduler.name,
            now,
            FastPlan(core.next_step_id, lockstep),
            core.kv,
            core.ledger,
            scheduler.limits.async_scheduling,
            core._oracle,
            core.connector,
            core.fetched,
        )
        self._core = core
        self._lockstep = lockstep
        self._memory = memory
        self._asked: Request | None = None  # its prefix was looked up, but it is not admitted yet
        self.served = False
        """Whether the scheduler has called `decode`."""
        self.in_order = False
        """Whether it did so with its own list of running requests, so that their order is that of the next plans."""
        self.num_left = 0
        """Number of requests that `decode` has left to the scheduler."""
        self.until = NO_END
        """Step id at which the scheduler must plan again."""
        self.has_state = False
        """Whether the scheduler must also plan again after requests end."""
        self.refused = False
        """Whether a request was refused for lack of memory."""
        self.idle = not scheduler.running
        """Whether nothing runs: with no request there, the scheduler cannot look at what changes as they decode."""
        if memory is not None:
            memory.looked = False
        if lockstep is not None:
            lockstep.looked = False

    @property
    def now(self) -> int:
        """See `PlanContext.now`."""
        self._look()
        return self._now

    def _look(self) -> None:
        """Record that the scheduler asked for something that changes from step to step."""
        if self._memory is not None:
            self._memory.looked = True

    @property
    def num_tokens(self) -> int:
        """See `PlanContext.num_tokens`."""
        tokens = sum(self.plan._tokens.values()) if self.plan._tokens else 0
        return tokens + (self._lockstep.due if self._lockstep is not None else 0)

    def has_looked(self) -> bool:
        """Whether the scheduler asked for something that changes from step to step, as far as memory can tell. A plain
        allocator cannot tell, so the answer is yes."""
        memory, lockstep = self._memory, self._lockstep
        if memory is None or memory.looked or self._asked is not None:
            return True
        return lockstep is not None and lockstep.looked

    def decode(
        self,
        running: Sequence[Request],
        most: int,
        *,
        free: int = 0,
        steps: int | None = None,
        overrun: bool = False,
    ) -> Sequence[Request]:
        """See `PlanContext.decode`."""
        plan, lockstep, memory = self.plan, self._lockstep, self._memory
        if self.served or plan._tokens or plan.layout == "recompute":
            return running
        if overrun and lockstep is not None and lockstep.overrun:
            return running  # the scheduler decides how far past its cap a request is computed
        if steps is not None:
            self.until, self.has_state = plan.step_id + steps, True
        if lockstep is not None and memory is not None:
            self.served = True
            looked = memory.looked
            left: Sequence[Request] = lockstep.serve(running, plan, most, free, not overrun)
            memory.looked = looked
        elif self._core.speculator is not None and not free and not overrun:
            self.served = True
            self.in_order = running is self._core.scheduler.running
            looked = memory is not None and memory.looked
            left = self._verify(running, most)
            if memory is not None:
                memory.looked = looked
        else:
            return running
        self.num_left = len(left)
        return left

    def _verify(self, running: Sequence[Request], most: int) -> Sequence[Request]:
        """Serve requests together with the drafts attached to them, stopping at the first request whose drafts cannot
        all be verified."""
        tokens, verified, grow = self.plan._tokens, self.plan.drafts, self.kv.grow
        limit, ahead = self._core.scheduler.limits.max_model_len, self._core.lookahead
        for i, request in enumerate(running):
            computed, known, drafts = request._num_computed_tokens, request._num_tokens, request.num_draft_tokens
            if self._asynchronous:
                coming = request._num_output_placeholders
                if coming > 0 and computed + 2 - coming >= request.prompt_len + request.max_tokens:
                    return running[i:]
                known += coming
            new = 1 + drafts
            if known - computed != 1 or new > most or computed + new >= limit:
                return running[i:]
            if not grow(request, new, ahead):
                return running[i:]
            tokens[request] = new
            if drafts:
                verified[request] = drafts
                request.num_draft_tokens = 0
            most -= new
        return ()

    def tokens_left(self, requests: Sequence[Request], most: int) -> int:
        """See `PlanContext.tokens_left`."""
        self._look()
        members = self._lockstep.tokens_left(requests, most) if self._lockstep is not None else None
        if members is None:
            return super().tokens_left(requests, most)
        left, others = members
        return left + super().tokens_left(others, most)

    def lookup(self, request: Request) -> Hit:
        """See `PlanContext.lookup`."""
        memory = self._memory
        if memory is None or request in self.fetched:
            return super().lookup(request)
        looked = memory.looked
        hit = self.kv.lookup(request)
        memory.looked = looked
        if self.kv.shares and (request.content is not None or request.state is not State.WAITING):
            self._ask_again(request)
        return hit

    def _ask_again(self, request: Request) -> None:
        """Record that what was found of a request may differ by the next plan, unless this plan admits it."""
        if self._asked is not None and self._asked is not request:
            self._look()
        self._asked = request

    def deferred(self, request: Request, hit: Hit) -> bool:
        """See `PlanContext.deferred`."""
        deferred = super().deferred(request, hit)
        if deferred:
            self._look()  # KV on its way to another request will be available later
        return deferred

    def external(self, request: Request, hit: Hit) -> int:
        """See `PlanContext.external`."""
        tokens = super().external(request, hit)
        if self.connector is not None and self.connector.in_step:
            self._ask_again(request)
        return tokens

    def fetch(
        self, request: Request, hit: Hit, *, full_tokens: int = 0, reserve: int = 0, owed: int = 0
    ) -> bool | None:
        """See `PlanContext.fetch`."""
        if self.connector is None:
            return None
        memory = self._memory
        looked = memory is not None and memory.looked
        taken = super().fetch(request, hit, full_tokens=full_tokens, reserve=reserve, owed=owed)
        if memory is not None:
            memory.looked = looked
        if not taken:
            self._ask_again(request)  # more remote KV may be available
        elif self._asked is request:
            self._asked = None
        return taken

    def admit(
        self,
        request: Request,
        num_tokens: int,
        hit: Hit | None = None,
        *,
        full_tokens: int = 0,
        reserve: int = 0,
        lookahead: int = 0,
        drafts: int = 0,
        external: int = 0,
    ) -> bool:
        """See `PlanContext.admit`."""
        memory, hit = self._memory, hit if hit is not None else self.lookup(request)
        looked = memory is not None and memory.looked
        admitted = PlanContext.admit(
            self,
            request,
            num_tokens,
            hit,
            full_tokens=full_tokens,
            reserve=reserve,
            lookahead=lookahead,
            drafts=drafts,
            external=external,
        )
        if memory is not None:
            memory.looked = looked
        if not admitted:
            self.refused = True
        if self._asked is request and (admitted or self._stays_refused(request, full_tokens)):
            self._asked = None
        return admitted

    def _stays_refused(self, request: Request, full_tokens: int) -> bool:
        """Return whether a request that was refused for lack of memory stays refused as long as running requests only
        grow. It may not: generated tokens may become a prefix of it, tokens that it left in the cache may be evicted,
        so that its first chunk ends earlier, or KV of it may come from elsewhere."""
        return request.content is None and full_tokens >= request._num_tokens and self.connector is None

    def extend(self, request: Request, num_tokens: int, *, lookahead: int = 0, drafts: int = 0) -> bool:
        """See `PlanContext.extend`."""
        if request._keeper is not None:
            self._single_out(request)
        return super().extend(request, num_tokens, lookahead=lookahead, drafts=drafts)

    def schedule(self, request: Request, num_tokens: int, drafts: int = 0) -> None:
        """See `PlanContext.schedule`."""
        self._single_out(request)
        super().schedule(request, num_tokens, drafts)

    def unschedule(self, request: Request) -> int:
        """See `PlanContext.unschedule`."""
        self._single_out(request)
        return super().unschedule(request)

    def _stop(self, request: Request) -> None:
        if self._lockstep is not None:
            self._lockstep.dissolve(self.plan)
        request._keeper = None
        super()._stop(request)

    def _single_out(self, request: Request) -> None:
        """Dissolve the lockstep because a member is handled separately."""
        if request._keeper is not None and self._lockstep is not None:
            self._lockstep.dissolve(self.plan)
