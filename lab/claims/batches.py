"""Steps for calculations, and the cost model that a scenario prices them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servesim.contracts import Batch
from servesim.cost import TableCostModel
from servesim.run.scenario import Scenario
from servesim.run.setup import cost_model_of


def decode(count: int, context: int, tokens: int = 1) -> Batch:
    """Return a step of `count` sequences that attend to `context` tokens each, including the new one, and verify
    `tokens` tokens each, including their own."""
    total = count * context
    return Batch(
        linear_tokens=count * tokens,
        decode_count=count,
        decode_context_sum=total,
        decode_context_sumsq=total * context,
        decode_context_max=context,
        queries_per_sequence=tokens,
        sampled=count,
        drafts=count * (tokens - 1),
        sampled_context=total,
    )


def prompts(tokens: int, count: int = 1) -> Batch:
    """Return a step of `count` whole prompts."""
    total = tokens * count
    return Batch(linear_tokens=total, prefill=[(tokens, 0)] * count, sampled=count, sampled_context=total)


def step_of(kind: Mapping[str, int], context: int) -> Batch:
    """Return a step from its form in scenarios: {decode: sequences}, at that context, or {prompt: tokens}."""
    return decode(kind["decode"], context) if "decode" in kind else prompts(kind["prompt"])


def formula_share(*summaries: Mapping[str, Any]) -> float:
    """Return the largest share of the GPU time that is priced by formula in any of several runs."""
    return max(float(summary["cost_shares"]["roofline"]) for summary in summaries)


def cost_of(base: Mapping[str, Any], **changes: Any) -> TableCostModel:
    """Return the cost model of a scenario whose trace is irrelevant."""
    return cost_model_of(Scenario.of({"trace": "synth:", **base, **changes}))
