"""Requests that get one token in every turn, counted together.

A turn is a step that includes all of them. Every step is a turn unless the requests pause in it. While a request
decodes, its counters follow from the number of turns. With `offset` = (tokens computed before turn t is planned) - t,
which is constant,

    num_computed_tokens = t + offset                  once t turns are planned,
    num_tokens          = c + offset + 1              once c turns are committed,
    num_output_placeholders = t - c.

So a step costs nothing per request, and the turn in which the next request ends or needs a block is known. A request
whose prompt is computed by the last planned step is already a member, but takes part only from the next turn on; for
it, t and c count from its prompt's step. The counters of a member are written when it leaves and when they are read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter

from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan
from servesim.contracts.request import LAST, CounterKeeper, Request
from servesim.engine.fast.memory import LockstepMemory
from servesim.engine.fast.step import FastStep
from servesim.records.step import Late

Entry = tuple[int, int, Request]
"""(turn or other key, order, member), compared only up to the order, which is unique."""
_ORDER = attrgetter("_order")
TIDY = 64
"""Number of joining requests after which heaps are tidied."""


class Lockstep(CounterKeeper):
    """Members in batch order, and the requests after them in the list that the scheduler serves."""

    def __init__(
        self, kv: KVAllocator, memory: LockstepMemory, in_flight: deque[FastStep], asynchronous: bool, depth: int = 1
    ) -> None:
        self._kv = kv
        self._memory = memory
        self.in_flight = in_flight
        self._asynchronous = asynchronous
        self.overrun = max(depth - 2, 0)
        """Number of tokens that may be planned beyond the length cap."""
        self.members: dict[Request, tuple[int, int, int]] = {}
        """(offset, first turn as a member, first turn not yet committed on joining that gives it a token) by member, in
        batch order."""
        self._following: list[Request] = []  # will join once the step being planned is in flight
        self.turn = 0
        """Number of the next turn to be planned."""
        self.committed = 0
        """Number of turns committed so far."""
        self.committed_ns = -1
        """Time in ns at which the last turn was committed."""
        self.last_ns = -1
        """Time in ns at which the last step was committed."""
        self.paused = 0
        """Number of steps in flight that are not turns."""
        self.context_sum = 0
        """Sum of the computed tokens of all members after the last planned turn."""
        self.context_sumsq = 0
        self._ends: list[Entry] = []  # by the turn that delivers the last token
        self._caps: list[Entry] = []  # by the number of turns committed when tokens in flight reach the length cap
        self._longest: list[Entry] = []  # by -offset
        self._cap_sum = 0  # sum over members of the number of turns committed when each reaches its length cap
        self._cap_max = 0  # largest such number, perhaps of a member that has left
        self.num_joined = 0
        """Number of requests that have ever joined."""
        self._written = (-1, -1, -1)  # turns planned, turns committed and members when counters were last written
        # State of the scheduler as of its last plan.
        self.queue: list[Request] = []
        """List that the scheduler serves, as last seen: members, former members that have not ended, others."""
        self.apart: list[Request] = []
        """Requests in the list that are not members, in batch order. They may do anything."""
        self._served: list[Request] = []  # the same list object, which may grow at its end during the plan
        self.due = 0
        """Number of members in the plan being made."""
        self.most = 0
        """Maximum number of members in a step."""
        self.free = 0
        """Amount of memory in tokens that must be free before a step."""
        self.retires = False
        """Whether a member whose last token is in flight is left out of further turns."""
        self.looked = False
        """Whether a member's counters have been read."""
        self.on_read: Callable[[], None] = lambda: None
        """Callback invoked before the counters are written because of a read."""

    # During a plan.

    def serve(self, running: Sequence[Request], plan: Plan, most: int, free: int, retires: bool) -> list[Request]:
        """See `PlanContext.decode`. Members get their token, and the next requests in the list that need exactly one
        join them. Return the others."""
        self.retires = retires and self._asynchronous
        if self.retires:
            self.retire()
        served = running if isinstance(running, list) else list(running)
        if served != self.queue and not self._adopt(served):
            self.dissolve(plan)
            self.queue, self.apart = served.copy(), served.copy()
        self._served = served
        self.most, self.free = most, free
        n, memory = len(self.members), self._memory
        enough = not free or self._kv.usage().free >= free
        if not enough or (n and (n > most or not memory.extend(self.turn, self.committed))):
            self.dissolve(plan)
            return served
        self.due = n
        joined = 0
        for request in self.apart:
            if n + joined >= most or not self._decodes(request) or not self._may_join(request):
                break
            if not self._kv.grow(request, 1) or not self._join(request):
                break
            joined += 1
        if joined:
            self.apart = self.apart[joined:]
        return self.apart

    def _adopt(self, served: list[Request]) -> bool:
        """Return whether a list is the same as last seen, except for requests appended at its end, and adopt those."""
        known = len(self.queue)
        if len(served) <= known or served[:known] != self.queue:
            return False
        self._append(served[known:])
        return True

    def _append(self, requests: list[Request]) -> None:
        self.queue += requests
        self.apart = self.apart + requests

    def _decodes(self, request: Request) -> bool:
        """Return whether a request needs only its next token."""
        known, computed = request._num_tokens, request._num_computed_tokens
        if self._asynchronous:
            coming = request._num_output_placeholders
            if self.retires and coming > 0 and computed + 2 - coming >= request.prompt_len + request.max_tokens:
                return False
            known += coming
        return known - computed == 1 and not request.num_draft_tokens

    def tokens_left(self, requests: Sequence[Request], most: int) -> tuple[int, list[Request]] | None:
        """Return how many tokens all members together may still generate, and those of `requests` that are not members.
        Return None if some members are not among `requests`, or if one may generate more than `most`."""
        members, committed = self.members, self.committed
        others = [request for request in requests if request not in members]
        if len(requests) - len(others) < len(members) or self._cap_max - committed > most:
            return None
        left = self._cap_sum - committed * len(members)
        for _, first, begun in reversed(members.values()):
            if first <= committed:
                break
            if begun > committed:
                left -= begun - committed
        return left, others

    def end_plan(self, plan: Plan) -> None:
        """Finish a plan: find the requests that have entered the list after the members, and determine which of them
        join next."""
        if plan.preempted:
            return
        known = len(self.queue)
        if self._served and len(self._served) > known:
            self._append(self._served[known:])
        self._served = []
        if self.apart and (self.due or not self.members):
            self.apart = self._follow(self.apart, plan)

    def retire(self) -> list[Request]:
        """Remove and return members whose last token, by the length cap, is in flight: they take part in no further
        turns (as in vLLM's asynchronous scheduler)."""
        caps = self._caps
        retired: list[Request] = []
        while caps and caps[0][0] <= self.committed:
            request = caps[0][2]
            if request in self.members:
                if self.committed == self.turn:
                    break  # the last token has yet to be computed
                self.leave(request, stays=True)
                retired.append(request)
            heappop(caps)
        return retired

    def _may_join(self, request: Request) -> bool:
        """Return whether a request is getting a token in every step, including the latest, and will be stopped by its
        length cap."""
        steps, coming = len(self.in_flight), request._num_output_placeholders
        if not self._capped(request) or (self.paused and coming) or coming != steps - self.paused:
            return False
        return steps > 0 or request._last_token_ns == self.last_ns

    def _join(self, request: Request) -> bool:
        """Make a request whose memory is allocated a member from this turn on. It follows all members in the batch.
        Return False if the lockstep memory cannot take it."""
        computed = request._num_computed_tokens
        if not self._memory.join(request, computed - self.turn, computed + 1):
            return False
        self._enter(request, computed, self.turn, self.committed)
        self.due += 1
        return True

    def _follow(self, requests: list[Request], plan: Plan) -> list[Request]:
        """Let requests whose prompts this step completes join from the next turn on, in order, as long as they directly
        follow the members. Return the others."""
        tokens, first = plan._tokens, self.turn + 1
        for i, request in enumerate(requests):
            computed = request._num_computed_tokens + tokens.get(request, 0)
            if computed != request._num_tokens or request._num_output_placeholders or not self._capped(request):
                return requests[i:]
            if not self._has_last(request, computed) and not self._memory.join(request, computed - first, computed):
                return requests[i:]
            self._following.append(request)
        return []

    def _has_last(self, request: Request, computed: int) -> bool:
        """Return whether the token of a step that computes this many tokens of a request is its last one, so that it
        takes part in no turn."""
        return computed + 1 == request.prompt_len + request.max_tokens and (self.retires or not self._asynchronous)

    def _capped(self, request: Request) -> bool:
        """Return whether a request reaches its length cap before the maximum context length."""
        return request.prompt_len + request.max_tokens + self.overrun <= self._kv.max_model_len

    def admit_following(self) -> None:
        """Add the requests that were to join once the planned step is in flight."""
        for request in self._following:
            context = request._num_computed_tokens
            if self._has_last(request, context):
                request._order = self.num_joined
                self.num_joined += 1
            else:
                self._enter(request, context, self.turn, self.turn - 1)
        self._following.clear()

    def _enter(self, request: Request, context: int, first: int, begun: int) -> None:
        offset = context - first
        self.members[request] = (offset, first, begun)
        request._keeper = self
        order = request._order = self.num_joined
        self.num_joined += 1
        self.context_sum += context
        self.context_sumsq += context * context
        capped = request.prompt_len + request.max_tokens - offset - 1
        self._cap_sum += capped
        if capped > self._cap_max:
            self._cap_max = capped
        heappush(self._ends, (request._end_tokens - offset - 2, order, request))
        heappush(self._longest, (-offset, order, request))
        if self._asynchronous:
            cap = request.prompt_len + request.max_tokens - 2 - offset
            if cap <= begun:
                cap -= self.overrun  # immediately, although it is not in the steps in flight
            heappush(self._caps, (cap, order, request))
        if self.num_joined % TIDY == 0:
            self._tidy()

    def _tidy(self) -> None:
        """Drop the entries of heaps of which most have left and are deep in the heap."""
        for heap in (self._longest, self._caps, self._ends):
            if len(heap) > 2 * len(self.members) + TIDY:
                heap[:] = [entry for entry in heap if entry[2] in self.members]
                heapify(heap)

    def dissolve(self, plan: Plan) -> None:
        """Make all members ordinary requests again, with their own counters."""
        known, self.queue, self.apart, self._served = self.queue, [], [], []
        if self.members:
            self._let_go(plan)
        for request in known:  # also former members that have not ended, since they may now be anywhere
            request._order = LAST

    def _let_go(self, plan: Plan) -> None:
        if self.due:
            plan._tokens = dict.fromkeys(self.members, 1) | plan._tokens
            self.due = 0
        for step in self.in_flight:
            if step.together:
                step.sampled += [r for r, (_, first, _) in self.members.items() if first <= step.turn]
                step.sampled.sort(key=_ORDER)
                step.together = 0
        for request, (offset, first, begun) in self.members.items():
            self._write(request, offset, first, begun)
            request._keeper = None
            self._memory.leave(request, offset)
            request._order = LAST
        self.members.clear()
        self._ends.clear()
        self._caps.clear()
        self._longest.clear()
        self.context_sum = self.context_sumsq = self._cap_sum = self._cap_max = 0

    def forget(self, requests: Sequence[Request]) -> None:
        """Remove requests that have ended from the known list of the scheduler."""
        for request in requests:
            if request._order == LAST:
                if request in self.apart:
                    self.apart = [other for other in self.apart if other is not request]
                    self.queue = [other for other in self.queue if other is not request]
                continue
            i = bisect_left(self.queue, request._order, key=_ORDER)
            if i < len(self.queue) and self.queue[i] is request:
                del self.queue[i]

    # For the engine.

    def advance(self, steps: int) -> None:
        """Account for `steps` newly planned turns."""
        n, context = len(self.members), self.context_sum
        self.context_sum = context + n * steps
        self.context_sumsq += 2 * steps * context + n * steps * steps

    def add_to(self, batch: Batch) -> None:
        """Add all members to the batch of the turn that was just planned."""
        n, context = len(self.members), self.context_sum
        batch.linear_tokens += n
        batch.decode_count += n
        batch.decode_context_sum += context
        batch.decode_context_sumsq += self.context_sumsq
        batch.decode_context_max = max(batch.decode_context_max, self.longest() + 1)
        batch.sampled += n
        batch.sampled_context += context

    def longest(self) -> int:
        """Return the largest number of computed tokens of any member after the last planned turn. There must be a
        member."""
        longest = self._longest
        while longest[0][2] not in self.members:
            heappop(longest)
        return self.turn - longest[0][0]

    def late(self, turn: int, before: int) -> tuple[list[int], list[Late]]:
        """Return the members that get a token from the turn being committed but got none from the step before it,
        committed at `before`: the rows of those whose last token came with the last turn, and the others, which follow
        them in the batch."""
        rows = [request.row for request in self.members]
        others: list[Late] = []
        for request, (_, first, _) in reversed(self.members.items()):
            if first < turn:
                break
            rows.pop()
            if first == turn and request._last_token_ns != before:
                others.append((request.row, request._last_token_ns, 1))
        return rows, others[::-1]

    def ended(self, turn: int) -> list[Request]:
        """Remove and return the members whose last token comes with this turn, which is being committed."""
        ends, found = self._ends, []
        while ends and ends[0][0] <= turn:
            request = heappop(ends)[2]
            if request in self.members:
                self.leave(request)
                found.append(request)
        return found

    def steps_until_change(self, depth: int) -> tuple[int, bool]:
        """Return the number of further planning points, with `depth` steps in flight after them, until a member ends or
        retires, and whether one retires at the point after those. There must be at least one member."""
        ends, caps, members = self._ends, self._caps, self.members
        while ends[0][2] not in members:
            heappop(ends)
        while caps and caps[0][2] not in members:
            heappop(caps)
        last = ends[0][0]
        retires = self.retires and bool(caps) and caps[0][0] <= last
        if retires:
            last = caps[0][0] - 1
        return last - self.turn + depth, retires

    def next_batch(self, attention: str) -> Batch:
        """Return the batch of all members in the next turn."""
        n, context = len(self.members), self.context_sum
        after = context + n
        return Batch.decodes(n, after, self.context_sumsq + context + after, self.longest() + 1, attention=attention)

    def _retiring(self, committed: int) -> list[Request]:
        """Return the members that retire once `committed` turns are committed."""
        caps, members = self._caps, self.members
        found, at, stop = [], [0], len(caps)
        for i in at:  # descend the heap as long as the condition holds
            if i < stop and caps[i][0] <= committed:
                if caps[i][2] in members:
                    found.append(caps[i][2])
                at += (2 * i + 1, 2 * i + 2)
        return found

    def all_retire(self) -> bool:
        """Return whether no member takes part in the next turn, because each retires before."""
        members, caps = self.members, self._caps
        if not members:
            return True
        if not self.retires or not caps or caps[0][0] > self.committed or self.committed == self.turn:
            return False
        return len(self._retiring(self.committed)) == len(members)

    def batch_without_retired(self, steps: int, committed: int, batch: Batch) -> Batch | None:
        """Return the batch `steps` turns after `batch`, which is that of the next turn, without the members that retire
        once `committed` turns are committed. Return None if no members remain."""
        members, longest = self.members, self._longest
        retired = self._retiring(committed)
        n = batch.decode_count - len(retired)
        if not n:
            return None
        after, before = self.turn + steps + 1, batch.decode_context_sum
        contexts = [after + members[request][0] for request in retired]
        context = before + steps * batch.decode_count - sum(contexts)
        gone: list[Entry] = []
        while longest[0][2] not in members or longest[0][2] in retired:
            gone.append(heappop(longest))
        most = after - longest[0][0]
        for entry in gone:
            if entry[2] in members:
                heappush(longest, entry)
        squares = batch.decode_context_sumsq + steps * (2 * before + steps * batch.decode_count)
        squares -= sum([c * c for c in contexts])
        return Batch.decodes(n, context, squares, most, attention=batch.attention)

    def leave(self, request: Request, stays: bool = False) -> None:
        """Remove a member that ends or is cancelled. With `stays`, it takes part in no further turns but still gets its
        tokens in flight, as an ordinary request."""
        offset, first, begun = self.members.pop(request)
        context = self.turn + offset
        self.context_sum -= context
        self.context_sumsq -= context * context
        self._cap_sum -= request.prompt_len + request.max_tokens - offset - 1
        self._write(request, offset, first, begun)
        request._keeper = None
        self._memory.leave(request, offset)
        for step in self.in_flight:
            if step.turn >= first:
                step.together -= 1
                if stays:
                    step.sampled.append(request)
                    step.sampled.sort(key=_ORDER)

    def settle(self, request: Request) -> None:
        """Write the counters of all members because those of one member are read."""
        self.looked = True
        self.on_read()
        if self._written != (self.turn, self.committed, len(self.members)):
            self.refresh()

    def refresh(self) -> None:
        """Write the counters of all members."""
        self._written = (self.turn, self.committed, len(self.members))
        for request, (offset, first, begun) in self.members.items():
            self._write(request, offset, first, begun)

    def _write(self, request: Request, offset: int, first: int, begun: int) -> None:
        committed = self.committed if self.committed > begun else begun
        request._num_computed_tokens = self.turn + offset
        request._num_tokens = committed + offset + 1
        request._num_output_placeholders = self.turn - committed
        if self.committed > first:
            request._last_token_ns = self.committed_ns

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        contexts = [self.turn + offset for offset, _, _ in self.members.values()]
        assert self.context_sum == sum(contexts), "contexts in lockstep miscounted"
        assert self.context_sumsq == sum([c * c for c in contexts]), "squares of contexts in lockstep miscounted"
        caps = [r.prompt_len + r.max_tokens - offset - 1 for r, (offset, _, _) in self.members.items()]
        assert self._cap_sum == sum(caps), "length caps in lockstep miscounted"
        assert not caps or self._cap_max >= max(caps), "a length cap in lockstep exceeds the recorded maximum"
        assert not contexts or self.longest() == max(contexts), (
            "the longest context in lockstep is not the recorded one"
        )
        turns = [step for step in self.in_flight if step.turn >= 0]
        assert self.committed == self.turn - len(turns), "turns committed miscounted"
        assert self.paused == len(self.in_flight) - len(turns), "pauses in flight miscounted"
