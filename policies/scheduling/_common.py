"""Helpers shared by several schedulers: memory-shortage rules of paged engines, and handling of waiting requests that
can never be served."""

from __future__ import annotations

from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import PlanContext
from servesim.contracts.request import Request
from servesim.contracts.scheduler import Scheduler

FOREVER = 1 << 30


def pending(request: Request) -> int:
    """Return the number of known tokens whose KV is not computed yet: 0 while the next token is in flight, 1 in
    decode."""
    return request.num_tokens - request.num_computed_tokens


def watermark(kv: KVAllocator, fraction: float) -> int:
    """Return the number of tokens in the given fraction of the usable blocks, rounded down to whole blocks."""
    return int(fraction * (kv.capacity_tokens // kv.block_size)) * kv.block_size


def one_block_free(kv: KVAllocator, sequences: int = 1) -> bool:
    """Return whether a token may be appended according to the test of vLLM V0 and Sarathi, which assumes that each
    sequence may need a new block."""
    return kv.reserves or kv.usage().free >= sequences * kv.block_size


def refuse_if_hopeless(scheduler: Scheduler, ctx: PlanContext, request: Request) -> bool:
    """Reject the head of the queue if it was denied memory although no other request holds any, since it could never
    run."""
    if scheduler.running or ctx.plan.tokens or scheduler.kv.held_tokens:
        return False
    ctx.reject(request, "needs more KV memory than the scheduler ever allocates to a request")
    scheduler.drop_waiter(request)
    return True
