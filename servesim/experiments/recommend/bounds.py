"""Optimistic rate of a deployment, from the cost model alone: the analytic start of a search.

A replica that always decodes the best batch that fits in its memory and its TPOT limit, and never waits, serves at most
this many requests per second. Speculation and prefill on other replicas are not bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from servesim.contracts.cost import Batch
from servesim.experiments.goals import Goal
from servesim.run.setup import Setup
from servesim.workload.trace import Trace


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
    """Return the requests/s that a replica serves at most, or infinity if there is no bound."""
    scenario, cost = setup.scenario, setup.cost
    if len(setup.pools) > 1 or scenario.speculation["name"] != "none":
        return math.inf
    core = setup.cores[0]
    context = work.prompt + work.output / 2
    tokens = core.kv.num_blocks * core.kv.block_size
    most = max(1, min(core.scheduler.limits.max_num_seqs, int(tokens / context)))
    prefill = 0.0 if work.shared else work.prompt * _prefill_ns_per_token(setup, work)
    sizes = sorted({most, *(2**i for i in range(most.bit_length()))})
    best = 0.0
    for size in sizes:
        step = cost.price(_decodes(size, context)).ns
        if step > limit_ms * 1e6:
            break
        best = max(best, 1e9 / (prefill + work.output * step / size))
    return best * scenario.dp


def _decodes(size: int, context: float) -> Batch:
    each = max(int(context), 1)
    return Batch.decodes(size, size * each, size * each * each, each)


def _prefill_ns_per_token(setup: Setup, work: Work) -> float:
    """Return the GPU time of a prompt token in a large chunk."""
    chunk = max(int(min(setup.cores[0].scheduler.limits.max_num_batched_tokens, max(work.prompt, 2048))), 1)
    return setup.cost.price(Batch(linear_tokens=chunk, prefill=[(chunk, 0)], sampled=1)).gpu_ns / chunk
