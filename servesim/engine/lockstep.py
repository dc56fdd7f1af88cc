"""Requests that get one token in every step, counted together.

While a request decodes, its counters follow from the number of steps: with `offset` = tokens computed before step s is
planned - s, which stays the same,

    num_computed_tokens = s + offset                  once s steps are planned,
    num_tokens          = c + offset + 1              once c steps are committed,
    num_output_placeholders = s - c.

So a step costs nothing per request, and who ends or needs a block next is known by step id. A request whose prompt is
computed by the last step planned is a member already, from the next step on: with it s and c count from its prompt's
step. A request in lockstep has old counters: they are written when it leaves.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan
from servesim.contracts.request import LAST, Request
from servesim.engine.step import Step

Entry = tuple[int, int, Request]
"""(step id or other key, order, member): compared up to the order, which is unique."""


class Lockstep:
    """The members, in batch order. The engine keeps one where scheduler and allocator know how."""

    def __init__(self, kv: KVAllocator, in_flight: deque[Step], asynchronous: bool, depth: int = 1) -> None:
        self._kv = kv
        self._in_flight = in_flight
        self._asynchronous = asynchronous
        self._overrun = max(depth - 2, 0)  # tokens that may be planned beyond the length cap
        self.members: dict[Request, tuple[int, int, int]] = {}
        """In batch order: offset, id of the first step together, and of the first one not committed when it joined that
        it has got (or will get) a token from."""
        self._following: list[Request] = []  # join once the step being planned is in flight
        self.step_id = 0
        """Of the next step to be planned."""
        self.committed = 0
        """Steps committed so far."""
        self.committed_ns = -1
        """When the last step was committed."""
        self.context_sum = 0
        """Tokens computed of all members once the last step is planned."""
        self.context_sumsq = 0
        self._ends: list[Entry] = []  # by the step that delivers the last token
        self._caps: list[Entry] = []  # by the steps committed when what is in flight reaches the length cap
        self._longest: list[Entry] = []  # by -offset
        self._joined = 0

    # For schedulers.

    def retire(self) -> list[Request]:
        """Those whose last token is in flight, by the length cap, take no part in further steps (vLLM's asynchronous
        scheduler); who they are."""
        caps = self._caps
        retired: list[Request] = []
        while caps and caps[0][0] <= self.committed:
            request = caps[0][2]
            if request in self.members:
                if self.committed == self.step_id:
                    break  # the last token has still to be computed
                self.leave(request, stays=True)
                retired.append(request)
            heappop(caps)
        return retired

    def extend(self, plan: Plan) -> bool:
        """Give each member memory for one more token and enter them all in the plan; False (and nothing done) if
        there is not enough for all."""
        if not self._kv.extend(self.step_id, self.committed):
            return False
        plan.together = len(self.members)
        return True

    def join(self, request: Request, plan: Plan) -> bool:
        """From this step on a request whose memory for it is there, behind all members in the batch, is one of them;
        False if it has not got a token in every step of late, or its length cap is not what will stop it."""
        steps = len(self._in_flight)
        if not self._capped(request):
            return False
        if request.num_output_placeholders != steps or (not steps and request.last_token_ns != self.committed_ns):
            return False
        computed = request.num_computed_tokens
        if not self._kv.join(request, computed - self.step_id, computed + 1):
            return False
        self._enter(request, computed, self.step_id, self.committed)
        plan.together += 1
        return True

    def follow(self, requests: list[Request], plan: Plan) -> list[Request]:
        """Of the requests behind all members in the batch, those join from the next step on, one after the other,
        whose prompt is computed by this one; those that are left."""
        tokens, first = plan.tokens, self.step_id + 1
        for i, request in enumerate(requests):
            computed = request.num_computed_tokens + tokens.get(request, 0)
            if computed != request.num_tokens or request.num_output_placeholders or not self._capped(request):
                return requests[i:]
            if not self._kv.join(request, computed - first, computed):
                return requests[i:]
            self._following.append(request)
        return []

    def _capped(self, request: Request) -> bool:
        """Whether its length cap stops a request, not the end of the context before it."""
        return request.prompt_len + request.max_tokens + self._overrun <= self._kv.max_model_len

    def admit_following(self) -> None:
        """A step is in flight."""
        for request in self._following:
            self._enter(request, request.num_computed_tokens, self.step_id, self.step_id - 1)
        self._following.clear()

    def _enter(self, request: Request, context: int, first: int, begun: int) -> None:
        offset = context - first
        self.members[request] = (offset, first, begun)
        order = request._order = self._joined
        self._joined += 1
        self.context_sum += context
        self.context_sumsq += context * context
        heappush(self._ends, (request._end_tokens - offset - 2, order, request))
        heappush(self._longest, (-offset, order, request))
        if self._asynchronous:
            cap = request.prompt_len + request.max_tokens - 2 - offset
            if cap <= begun:
                cap -= self._overrun  # at once, however many steps in flight it has no part in
            heappush(self._caps, (cap, order, request))
        for heap in (self._longest, self._caps, self._ends):
            if len(heap) > 2 * len(self.members) + 64:  # most have left and are nowhere near the top
                heap[:] = [entry for entry in heap if entry[2] in self.members]
                heapify(heap)

    def dissolve(self, plan: Plan) -> None:
        """Back to requests that stand for themselves, with counters of their own."""
        if not self.members:
            return
        if plan.together:
            plan.tokens = dict.fromkeys(self.members, 1) | plan.tokens
            plan.together = 0
        for step in self._in_flight:
            if step.together:
                step.sampled += [r for r, (_, first, _) in self.members.items() if first <= step.id]
                step.sampled.sort(key=lambda r: r._order)
                step.together = 0
        self.refresh()
        for request, (offset, _, _) in self.members.items():
            self._kv.leave(request, offset)
            request._order = LAST
        self.members.clear()
        self._ends.clear()
        self._caps.clear()
        self._longest.clear()
        self.context_sum = self.context_sumsq = 0

    # For the engine.

    def advance(self, steps: int) -> None:
        """So many steps with all members are planned."""
        n, context = len(self.members), self.context_sum
        self.context_sum = context + n * steps
        self.context_sumsq += 2 * steps * context + n * steps * steps

    def longest(self) -> int:
        """Most tokens computed of a member once the last step is planned; there is one."""
        longest = self._longest
        while longest[0][2] not in self.members:
            heappop(longest)
        return self.step_id - longest[0][0]

    def ended(self, step_id: int) -> list[Request]:
        """Members whose last token comes with this step, which is being committed; they are members no more."""
        ends, found = self._ends, []
        while ends and ends[0][0] <= step_id:
            request = heappop(ends)[2]
            if request in self.members:
                self.leave(request)
                found.append(request)
        return found

    def steps_until_change(self, depth: int) -> tuple[int, bool]:
        """For how many more planning points, with as many steps in flight after them, nobody ends before and nobody
        retires at one; and whether somebody retires at the next one. There is a member."""
        ends, caps, members = self._ends, self._caps, self.members
        while ends[0][2] not in members:
            heappop(ends)
        while caps and caps[0][2] not in members:
            heappop(caps)
        last = ends[0][0]
        retires = bool(caps) and caps[0][0] <= last
        if retires:
            last = caps[0][0] - 1
        return last - self.step_id + depth, retires

    def next_batch(self, attention: str) -> Batch:
        """What all members make in the next step."""
        n, context = len(self.members), self.context_sum
        after = context + n
        return Batch(
            n,
            [],
            n,
            after,
            self.context_sumsq + context + after,
            self.longest() + 1,
            1,
            n,
            0,
            0,
            attention,
            sampled_context=after,
        )

    def _retiring(self, committed: int) -> list[Request]:
        """Who retires when so many steps are committed, if they are members until then."""
        caps, members = self._caps, self.members
        found, at = [], [0]
        while at:  # down the heap as far as caps are that low
            i = at.pop()
            if i < len(caps) and caps[i][0] <= committed:
                if caps[i][2] in members:
                    found.append(caps[i][2])
                at += (2 * i + 1, 2 * i + 2)
        return found

    def batch_without_retired(self, steps: int, committed: int, batch: Batch) -> Batch | None:
        """`batch`, of the next step, that many steps later, when as many are committed as makes somebody retire; None
        if that is everyone."""
        members, longest = self.members, self._longest
        retired = self._retiring(committed)
        n = batch.decode_count - len(retired)
        if not n:
            return None
        batch = batch.advance(steps)
        after = self.step_id + steps + 1
        contexts = [after + members[request][0] for request in retired]
        context = batch.decode_context_sum - sum(contexts)
        gone: list[Entry] = []
        while longest[0][2] not in members or longest[0][2] in retired:
            gone.append(heappop(longest))
        most = after - longest[0][0]
        for entry in gone:
            if entry[2] in members:
                heappush(longest, entry)
        squares = batch.decode_context_sumsq - sum([c * c for c in contexts])
        return Batch(n, [], n, context, squares, most, 1, n, 0, 0, batch.attention, sampled_context=context)

    def leave(self, request: Request, stays: bool = False) -> None:
        """A member ends, or is cancelled; or it only takes part in no further step and gets its tokens in flight on
        its own (`stays`)."""
        offset, first, begun = self.members.pop(request)
        context = self.step_id + offset
        self.context_sum -= context
        self.context_sumsq -= context * context
        self._settle(request, offset, first, begun)
        self._kv.leave(request, offset)
        for step in self._in_flight:
            if step.id >= first:
                step.together -= 1
                if stays:
                    step.sampled.append(request)
                    step.sampled.sort(key=lambda r: r._order)

    def refresh(self) -> None:
        """Write the counters of all members."""
        for request, (offset, first, begun) in self.members.items():
            self._settle(request, offset, first, begun)

    def _settle(self, request: Request, offset: int, first: int, begun: int) -> None:
        committed = max(self.committed, begun)
        request.num_computed_tokens = self.step_id + offset
        request.num_tokens = committed + offset + 1
        request.num_output_placeholders = self.step_id - committed
        if committed >= first:
            request.last_token_ns = self.committed_ns

    def check_integrity(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        contexts = [self.step_id + offset for offset, _, _ in self.members.values()]
        assert self.context_sum == sum(contexts), "contexts in lockstep miscounted"
        assert self.context_sumsq == sum([c * c for c in contexts]), "squares of contexts in lockstep miscounted"
        assert not contexts or self.longest() == max(contexts), "the longest context in lockstep is another one"
        assert self.committed == self.step_id - len(self._in_flight), "steps committed miscounted"
