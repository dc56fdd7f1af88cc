"""Optimistic rate of a deployment, from the cost model alone: the analytic start of a search.

Replicas compute all prompt tokens and all output tokens. The better of two ideals bounds their rate: steps full of
prompts with decodes for free, or the best batch of decodes that fits in memory and in the TPOT limit with prompts for
free. With speculation, all drafts are accepted, and drafting and verifying them is free. Replicas are those of the
start. Short runs may exceed the bound by what they leave in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from servesim.contracts.cost import Batch
from servesim.experiments.goals import Goal
from servesim.metrics.words import amount
from servesim.run.pool import PoolSetup
from servesim.run.setup import Setup
from servesim.workload.trace import Trace

MOST_TOKENS = 16_384
"""Number of prompt tokens in a step above which more do not make a token cheaper."""


class Work(NamedTuple):
    """Mean request of a workload."""

    prompt: float
    """Prompt tokens."""
    output: float
    """Output tokens."""
    shared: bool
    """Whether prompts may be found in a cache, so that prefill has no lower bound."""

    @classmethod
    def of(cls, trace: Trace) -> Work:
        """Return the mean request of a trace."""
        shared = trace.content is not None
        return cls(float(trace.prompt_len.mean()), max(float(trace.output_len.mean()), 1.0), shared)


def tpot_limit(goals: Sequence[Goal]) -> float:
    """Return the TPOT that no deployment may exceed in most of its steps, in ms."""
    limits = [goal.limits["tpot"] for goal in goals if "tpot" in goal.limits and goal.of is None and goal.share > 0.5]
    return min(limits, default=math.inf)


def optimistic_rate(setup: Setup, work: Work, limit_ms: float) -> float:
    """Return the requests/s that a deployment serves at most with the replicas of the start: with prefill and decode
    apart, those of the slower side."""
    scenario: Any = setup.scenario
    rates = dict[str, float]()
    for pool in setup.pools:
        role = pool.pool.role
        # With `disaggregate`, decode pools may compute any prompt.
        elsewhere = role == "decode" or (role == "prefill" and scenario.disaggregate is not None)
        prefill = 0.0 if work.shared or elsewhere else work.prompt * _prefill_ns_per_token(pool, work)
        decode = 0.0 if role == "prefill" else _decode_ns(pool, work, limit_ms)
        busy = max(prefill, decode)
        rate = len(pool.cores) * 1e9 / busy if busy else math.inf
        rates[role] = rates.get(role, 0.0) + rate
    both = rates.pop("both", 0.0)
    return both + (min(rates.values()) if rates else 0.0)


def too_long(setup: Setup, trace: Trace, goals: Sequence[Goal]) -> str | None:
    """Return why a deployment misses a goal at any load: it rejects more requests, for their length, than the goal may
    miss, by more than traces that are drawn alike differ (four standard deviations). None if it does not."""
    most = max((pool.cores[0].scheduler.limits.max_model_len for pool in setup.pools if pool.cores), default=math.inf)
    rejected = float((trace.prompt_len + trace.max_tokens > most).mean())
    share = max((goal.share for goal in goals if goal.of is None and not goal.without), default=0.0)
    if rejected - (1 - share) <= 4 * math.sqrt(share * (1 - share) / len(trace)):
        return None
    return (
        f"{amount(100 * rejected, '%')} of the requests exceed its limit of {most:,} tokens (prompt + max_tokens), and "
        f"the SLO lets {amount(100 * (1 - share), '%')} miss"
    )


def alone_ns(setup: Setup, work: Work) -> float:
    """Return the GPU time of the mean request by itself on the slowest pool, in ns."""
    times = (pool.cost for pool in setup.pools)
    context = work.prompt + work.output / 2
    prompt = Batch(linear_tokens=max(int(work.prompt), 1), prefill=[(max(int(work.prompt), 1), 0)], sampled=1)
    return max(cost.price(prompt).gpu_ns + work.output * cost.price(_decodes(1, context)).gpu_ns for cost in times)


def first_replicas(rate: float, each: float, most: int) -> int:
    """Return the number of replicas, at most `most`, from which a search that doubles starts, if each one serves at
    most `each` of `rate` requests/s: the smallest power of two that is not ruled out, so that the search tries what it
    would try from 1. It is 1 where that is 2, since a search that finds 2 enough would end with 1."""
    least = rate / each if each > 0 else 1.0
    found = 1 << (math.ceil(max(least, 1.0)) - 1).bit_length()
    found = min(found, 1 << (most.bit_length() - 1))
    return found if found > 2 else 1


def _decode_ns(pool: PoolSetup, work: Work, limit_ms: float) -> float:
    """Return the time of a request in the best batch of decodes."""
    core = pool.cores[0]
    each = 1 + (core.speculator.max_drafts if core.speculator is not None else 0)  # tokens of a request in a step
    context = work.prompt + work.output / 2
    tokens = core.kv.num_blocks * core.kv.block_size
    most = max(1, min(core.scheduler.limits.max_num_seqs, int(tokens / context)))
    sizes = sorted({most, *(2**i for i in range(most.bit_length()))})
    steps = ((size, pool.cost.price(_decodes(size, context)).ns) for size in sizes)
    return min(
        (work.output * ns / (size * each) for size, ns in steps if ns <= each * limit_ms * 1e6), default=math.inf
    )


def _decodes(size: int, context: float) -> Batch:
    each = max(int(context), 1)
    return Batch.decodes(size, size * each, size * each * each, each)


def _prefill_ns_per_token(pool: PoolSetup, work: Work) -> float:
    """Return the GPU time of a prompt token in a step full of prompts."""
    budget = max(int(min(pool.cores[0].scheduler.limits.max_num_batched_tokens, MOST_TOKENS)), 1)
    each = max(min(int(work.prompt), budget), 1)
    count = budget // each
    batch = Batch(linear_tokens=count * each, prefill=[(each, 0)] * count, sampled=count)
    return pool.cost.price(batch).gpu_ns / (count * each)
