"""Composition of a batch from a plan: every request is verified and advanced."""

from __future__ import annotations

from servesim.contracts.cost import Batch
from servesim.contracts.kv import KVAllocator
from servesim.contracts.plan import Plan
from servesim.contracts.request import RUNNING, Request
from servesim.errors import NotForPipelines, PolicyError


def compose(plan: Plan, kv: KVAllocator, where: str, asynchronous: bool) -> tuple[Batch, list[Request]]:
    """Return the batch and the requests that sample in it, in batch order. Raise PolicyError if the plan is illegal.
    `where` names the policy and the time of the plan. `asynchronous` allows computing from tokens that are still in
    flight."""
    slots, drafts, resumed = kv.slots, plan.drafts, plan.resumed
    prefill: list[tuple[int, int]] = []
    prompts: list[tuple[int, int, int, int]] = []
    sampled: list[Request] = []
    total = count = context = square = longest = queries = reach = 0
    for request, new in plan._tokens.items():
        past = request._num_computed_tokens
        after = past + new
        known = request._num_tokens + request._num_output_placeholders
        extra = drafts.get(request, 0) if drafts else 0
        most = extra + (known if asynchronous else request._num_tokens)
        if not (request.state is RUNNING and extra < new and after <= most and slots(request) >= after):
            _refuse(plan, kv, request, most, f"{where}, step {plan.step_id}")
        request._num_computed_tokens = after
        total += new
        if new > 1 + extra or past < request.prompt_len or (resumed and request in resumed):
            prompts.append((new, past, request.prompt_len, known))
        if after < known:
            prefill.append((new, past))
            continue
        sampled.append(request)
        reach += after
        request._num_output_placeholders += 1 + extra
        if new == 1 + extra:
            count += 1
            context += after
            square += after * after
            queries += new
            if after > longest:
                longest = after
        else:
            prefill.append((new, past))
    if type(total) is not int:
        raise PolicyError(f"{where}, step {plan.step_id}: schedules a number of tokens that is not an int")
    batch = Batch(total, prefill)
    batch.sampled, batch.sampled_context = len(sampled), reach
    batch.attention, batch.prompts = plan.attention, prompts
    batch.decode_count, batch.decode_context_sum, batch.decode_context_sumsq = count, context, square
    batch.decode_context_max, batch.queries_per_sequence = longest, -(-queries // count) if count else 1
    batch.bytes_moved, batch.drafts = plan.bytes_moved, sum(drafts.values()) if drafts else 0
    return batch, sampled


def _refuse(plan: Plan, kv: KVAllocator, request: Request, known: int, where: str) -> None:
    new = plan._tokens[request]
    where = f"{where}: schedules {new} tokens of {request}"
    if request.state is not RUNNING:
        raise PolicyError(f"{where}, which is not running")
    if new < 1:
        raise PolicyError(f"{where}: at least one is needed")
    if plan.drafts.get(request, 0) >= new:
        raise PolicyError(f"{where}, all of them drafts")
    if request.num_computed_tokens + new > known:
        coming = request.num_output_placeholders
        if coming and request.num_computed_tokens + new <= known + coming:
            raise NotForPipelines(
                f"{where}, of which only {known} tokens are known: the next one is still in flight through a pipeline "
                "(pp > 1)"
            )
        raise PolicyError(f"{where}, of which only {known} tokens are known")
    raise PolicyError(f"{where}, which has memory for only {kv.slots(request)} tokens")
