"""Requests that get one token in every step, counted together.

While a request decodes, its counters follow from the number of steps: with `offset` = tokens computed before step s is
planned - s, which stays the same,

    num_computed_tokens = s + offset                  once s steps are planned,
    num_tokens          = c + offset + 1              once c steps are committed,
    num_output_placeholders = s - c.

So a step costs nothing per request, and who ends or needs a block next is known by step id. A request in lockstep has
old counters: they are written when it leaves.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from servesim.contracts.kv import KVAllocator
from servesim.engine.plan import Plan
from servesim.engine.request import LAST, Request
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
        self.members: dict[Request, tuple[int, int]] = {}
        """In batch order: offset, and id of the first step together."""
        self.step_id = 0
        """Of the next step to be planned."""
        self.committed_ns = -1
        """When the last step was committed."""
        self.context_sum = 0
        """Tokens computed of all members once the last step is planned."""
        self.context_sumsq = 0
        self._ends: list[Entry] = []  # by the step that delivers the last token
        self._caps: list[Entry] = []  # by the steps committed when what is in flight reaches the length cap
        self._longest: list[Entry] = []  # by -offset
        self._joined = 0

    @property
    def committed(self) -> int:
        """Steps committed so far."""
        return self.step_id - len(self._in_flight)

    # For schedulers.

    def retire(self) -> None:
        """Those whose last token is in flight, by the length cap, take no part in further steps (vLLM's asynchronous
        scheduler)."""
        caps, committed = self._caps, self.step_id - len(self._in_flight)
        while caps and caps[0][0] <= committed:
            if caps[0][2] in self.members:
                if not self._in_flight:
                    return  # the last token has still to be computed
                self.leave(caps[0][2], stays=True)
            heappop(caps)

    def extend(self, plan: Plan) -> bool:
        """Give each member memory for one more token and enter them all in the plan; False (and nothing done) if
        there is not enough for all."""
        if not self._kv.extend(self.step_id, self.step_id - len(self._in_flight)):
            return False
        plan.together = len(self.members)
        return True

    def join(self, request: Request, plan: Plan) -> bool:
        """From this step on a request whose memory for it is there, behind all members in the batch, is one of them;
        False if it has not got a token in every step of late, or its length cap is not what will stop it."""
        steps = len(self._in_flight)
        if request.prompt_len + request.max_tokens + self._overrun > self._kv.max_model_len:
            return False  # the end of the context stops it before its length cap does
        if request.num_output_placeholders != steps or (not steps and request.last_token_ns != self.committed_ns):
            return False
        offset = request.num_computed_tokens - self.step_id
        if not self._kv.join(request, offset):
            return False
        context = request.num_computed_tokens
        self.members[request] = (offset, self.step_id)
        order = request._order = self._joined
        self._joined += 1
        self.context_sum += context
        self.context_sumsq += context * context
        heappush(self._ends, (request._end_tokens - offset - 2, order, request))
        heappush(self._longest, (-offset, order, request))
        if self._asynchronous:
            heappush(self._caps, (request.prompt_len + request.max_tokens - 2 - offset, order, request))
        for heap in (self._longest, self._caps, self._ends):
            if len(heap) > 2 * len(self.members) + 64:  # most have left and are nowhere near the top
                heap[:] = [entry for entry in heap if entry[2] in self.members]
                heapify(heap)
        plan.together += 1
        return True

    def dissolve(self, plan: Plan) -> None:
        """Back to requests that stand for themselves, with counters of their own."""
        if not self.members:
            return
        if plan.together:
            plan.tokens = dict.fromkeys(self.members, 1) | plan.tokens
            plan.together = 0
        for step in self._in_flight:
            if step.together:
                step.sampled += [r for r, (_, first) in self.members.items() if first <= step.id]
                step.sampled.sort(key=lambda r: r._order)
                step.together = 0
        self.refresh()
        for request, (offset, _) in self.members.items():
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

    def steps_until_change(self) -> int:
        """For how many more planning points, at least, nobody ends before and nobody retires at one."""
        ends, caps, members = self._ends, self._caps, self.members
        while ends[0][2] not in members:
            heappop(ends)
        steps = ends[0][0]
        while caps and caps[0][2] not in members:
            heappop(caps)
        if caps and caps[0][0] <= steps:
            steps = caps[0][0] - 1
        return steps - self.committed

    def leave(self, request: Request, stays: bool = False) -> None:
        """A member ends, or is cancelled; or it only takes part in no further step and gets its tokens in flight on
        its own (`stays`)."""
        offset, first = self.members.pop(request)
        context = self.step_id + offset
        self.context_sum -= context
        self.context_sumsq -= context * context
        self._settle(request, offset, first)
        self._kv.leave(request, offset)
        for step in self._in_flight:
            if step.id >= first:
                step.together -= 1
                if stays:
                    step.sampled.append(request)
                    step.sampled.sort(key=lambda r: r._order)

    def refresh(self) -> None:
        """Write the counters of all members."""
        for request, (offset, first) in self.members.items():
            self._settle(request, offset, first)

    def _settle(self, request: Request, offset: int, first: int) -> None:
        committed = self.committed
        request.num_computed_tokens = self.step_id + offset
        request.num_tokens = committed + offset + 1
        request.num_output_placeholders = self.step_id - committed
        if committed >= first:
            request.last_token_ns = self.committed_ns
