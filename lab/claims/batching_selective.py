"""Orca's selective batching: one flat batch for token-wise operators, and attention per request."""

from __future__ import annotations

from collections.abc import Sequence

from servesim.contracts import Batch
from servesim.cost import TableCostModel
from servesim.cost.breakdown import ATTENTION_DECODE, ATTENTION_PREFILL, breakdown

from . import Curve, Given, Lines, Outcome, Row, experiment
from .batches import cost_of, decode

SAMPLING = ("lm_head", "sampler")
"""Operators over sequences instead of tokens."""


@experiment(
    "selective-batching",
    group="batching",
    claim="Selective batching computes linear layers on the flattened batch and attention for each request by itself",
    source="lecture on batching; Yu et al., Orca, OSDI 2022",
)
def selective_batching(given: Given) -> Outcome:
    """Price an iteration of prompts and decodes, and decode steps by batch size, in both ways."""
    outcome = Outcome()
    costs = {name: cost_of(deployment, host="none") for name, deployment in given["deployments"].items()}
    judged = given["judged"]["deployment"]
    _flat(outcome, given["mixed"], costs[judged], judged)
    _attention(outcome, given, costs)
    return outcome


def mixed(prompts: Sequence[int], decodes: int, context: int, attention: str) -> Batch:
    """Return whole prompts together with decoding requests of equal context, in one iteration."""
    batch = decoding(decodes, context, attention)
    batch.prefill = [(prompt, 0) for prompt in prompts]
    batch.linear_tokens += sum(prompts)
    batch.sampled += len(prompts)
    batch.sampled_context += sum(prompts)
    return batch


def decoding(count: int, context: int, attention: str) -> Batch:
    """Return a decode step with one token for each of `count` requests of equal context."""
    batch = decode(count, context)
    batch.attention = attention
    return batch


def linear_ns(cost: TableCostModel, batch: Batch) -> float:
    """Return the time of token-wise operators: everything but attention and sampling."""
    other = (ATTENTION_PREFILL, ATTENTION_DECODE, *SAMPLING)
    return sum(ns for name, ns in breakdown(cost, batch).items() if name not in other)


def _flat(outcome: Outcome, given: Given, cost: TableCostModel, where: str) -> None:
    prompts, decodes, context = given["prompts"], given["decodes"], given["context"]
    batch = mixed(prompts, decodes, context, "per_request")
    tokens = sum(prompts) + decodes
    alone = Batch(linear_tokens=tokens, prefill=[(tokens, 0)], sampled=batch.sampled, sampled_context=tokens)
    flat, one = (linear_ns(cost, b) / 1e6 for b in (batch, alone))
    outcome.holds(
        f"linear layers of {len(prompts)} prompts and {decodes} decodes, {where}",
        "as of one flat sequence",
        f"{flat:.1f} ms; one sequence of {tokens:,} tokens {one:.1f} ms",
        flat == one,
    )
    rows, longest = len(prompts) + decodes, max(prompts)
    padded = Batch(linear_tokens=tokens, padded_tokens=rows * longest - tokens, prefill=[(tokens, 0)])
    text = f"{linear_ns(cost, padded) / 1e6:.0f} ms for {rows * longest:,} tokens"
    outcome.add(Row("the same in a rectangular batch, padded to the longest", "-", text, "shown"))


def _attention(outcome: Outcome, given: Given, costs: dict[str, TableCostModel]) -> None:
    sizes, context = given["batches"], given["context"]

    def ratio(cost: TableCostModel, count: int) -> float:
        times = [cost.price(decoding(count, context, kind)).gpu_ns for kind in ("per_request", "fused")]
        return times[0] / times[1]

    ratios = {name: [ratio(cost, count) for count in sizes] for name, cost in costs.items()}
    at = sizes.index(given["judged"]["batch"])
    prompt = mixed(given["mixed"]["prompts"], 0, 1, "per_request")
    fused = mixed(given["mixed"]["prompts"], 0, 1, "fused")
    for name, found in ratios.items():
        text = f"{found[at]:.2f} x the step with one fused call"
        whole = costs[name].price(prompt).gpu_ns / costs[name].price(fused).gpu_ns
        note = f"prompts alone {whole:.2f} x"
        outcome.add(Row(f"attention request by request, decodes of {sizes[at]}, {name}", "-", text, "shown", note))
    said = "; ".join(f"{name}: {', '.join(f'{r:.2f}' for r in found)}" for name, found in ratios.items())
    outcome.notes.append(
        "attention request by request is one kernel launch per request and layer; a decode's is far too small to fill "
        "a GPU, which is why engines after Orca fuse them"
    )
    outcome.figures.append(
        Lines(
            name="attention",
            title="A decode step with attention request by request",
            alt=f"Times the step with one fused call, at batches of {', '.join(map(str, sizes))}: {said}.",
            x_label="decoding requests",
            y_label="times the step with one fused attention call",
            curves=[Curve(name, sizes, found) for name, found in ratios.items()],
            log="x",
            level=(1.0, "no difference"),
        )
    )
