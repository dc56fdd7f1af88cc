"""Batch layouts other than one flat row of new tokens."""

from __future__ import annotations

from servesim.contracts.cost import Batch
from servesim.contracts.plan import Plan


def lay_out(batch: Batch, plan: Plan, unnamed: int = 0, later: int = 0) -> None:
    """Convert the mixed batch of a plan to the plan's layout. `unnamed` is the number of decoding requests in the batch
    that the plan does not name. `later` is the number of steps from the planned batch to this one, of the same
    requests.

    Attention is also computed over padding. If any padded row is prefilled in a step, all rows are.
    """
    if plan.layout == "recompute":
        batch.prefill = [(request._num_computed_tokens, 0) for request in plan._tokens]
        _no_decode(batch)
        computed = sum(new for new, _ in batch.prefill)
    elif plan.layout == "padded":
        rows, length = len(plan._tokens) + unnamed + plan.padded_rows, plan.row_len + later
        if batch.prefill:
            batch.prefill = [(length, 0)] * rows
            _no_decode(batch)
            computed = rows * length
        else:
            batch.decode_count, batch.decode_context_sum = rows, rows * length
            batch.decode_context_sumsq, batch.decode_context_max = rows * length * length, length
            computed = rows
    else:
        raise ValueError(f"unknown layout {plan.layout!r}")
    if type(computed) is not int:
        raise ValueError(f"padded_rows = {plan.padded_rows!r} and padded_len = {plan.padded_len!r} are not both ints")
    batch.padded_tokens = computed - batch.linear_tokens


def expand(batch: Batch, plan: Plan) -> None:
    """Turn draft i of a sequence into a separate sequence with the context before it. Call it after the requests'
    `num_computed_tokens` have been advanced."""
    for request, drafts in plan.drafts.items():
        if plan._tokens[request] != 1 + drafts:
            continue
        after = request._num_computed_tokens
        batch.decode_count += drafts
        for context in range(after - drafts, after):
            batch.decode_context_sum += context
            batch.decode_context_sumsq += context * context
    batch.queries_per_sequence = 1


def _no_decode(batch: Batch) -> None:
    batch.decode_count = batch.decode_context_sum = batch.decode_context_sumsq = batch.decode_context_max = 0
    batch.queries_per_sequence = 1
