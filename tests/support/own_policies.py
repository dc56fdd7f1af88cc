"""Policies as a user would write them, one of each kind, for tests to make mistakes in."""

SCHEDULER = """
from collections import deque
import numpy as np
from servesim.contracts import Scheduler

class Mine(Scheduler):
    def plan(self, ctx):
        for request in self.running:
            ctx.extend(request, 1)
        while self.waiting and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            lookahead = request.max_tokens - request.num_output_tokens
            if not ctx.admit(request, request.num_tokens, lookahead=lookahead, reserve=0):
                break
            del self.waiting[0]
            self.running.append(request)
        return ctx.plan
"""
ALLOCATOR = """
import numpy as np
from servesim.contracts import Hit, KVAllocator, Usage

class Mine(KVAllocator):
    def __init__(self, params, memory):
        super().__init__(params, memory)
        self.held, self.left = {}, self.capacity_tokens

    def can_admit(self, request, hit, now_tokens, full_tokens, reserve):
        return max(now_tokens, full_tokens) <= self.left - reserve

    def admit(self, request, hit, num_tokens, lookahead):
        self.held[request] = 0
        self.grow(request, num_tokens, lookahead)

    def grow(self, request, num_tokens, lookahead=0):
        more = max(request.num_computed_tokens + num_tokens + lookahead - self.held[request], 0)
        if more > self.left:
            return False
        self.held[request] += more
        self.left -= more
        return True

    def free(self, request):
        self.left += self.held.pop(request)

    def slots(self, request):
        return self.held.get(request, 0)

    def usage(self):
        return Usage(self.held_tokens, self.capacity_tokens - self.left - self.held_tokens, 0, self.left)
"""
ROUTER = """
import numpy as np
from servesim.contracts import Router

class Mine(Router):
    def route(self, request, views):
        return 0
"""
SPECULATOR = """
import numpy as np
from servesim.contracts import Speculator

class Mine(Speculator):
    pass
"""
ACCEPTANCE = """
import numpy as np
from servesim.contracts import AcceptanceModel

class Mine(AcceptanceModel):
    def accepted(self, request, position, drafts, width=1):
        return drafts // 2

    def rates(self, k):
        return [1.0] * (k // 2) + [0.0] * (k - k // 2)
"""
TEXTS = {
    "scheduler": SCHEDULER,
    "kv": ALLOCATOR,
    "router": ROUTER,
    "speculation": SPECULATOR,
    "acceptance": ACCEPTANCE,
}


def method(signature: str, *lines: str) -> str:
    """One more method of the class."""
    return f"\n    def {signature}:\n" + "".join(f"        {line}\n" for line in lines)
