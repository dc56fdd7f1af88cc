"""Random small worlds: bursts and lulls, tight and ample memory, one to three steps in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from servesim.engine.workload import Clients
from servesim.trace import After
from tests.support.worlds import ToyCost, World, toy_trace

ALLOCATORS = [
    "paged",
    "contiguous:reservation=pow2",
    "contiguous:reservation=oracle,compaction=1",
    "contiguous:reservation=oracle,fit=first",
    "contiguous:reservation=oracle,fit=best,compaction=1",
]
SHARING = [
    "prefix-hash",
    "prefix-radix",
    "prefix-radix:page_size=16",
    "prefix-radix:page_size=4,eviction_policy=lfu",
    "prefix-radix:eviction_policy=mru",
]
ALL_AT_ONCE = ["contiguous", "contiguous:fit=first"]
"""These reserve max_model_len, which must fit."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n = draw(st.integers(1, 24))
    rate = draw(st.sampled_from([0, 500, 5_000, 50_000]))
    gaps = draw(st.lists(st.integers(0, 2 * rate), min_size=n, max_size=n))
    prompts = draw(st.lists(st.one_of(st.integers(1, 20), st.integers(50, 90)), min_size=n, max_size=n))
    outputs = draw(st.lists(st.one_of(st.integers(1, 6), st.integers(1, 80)), min_size=n, max_size=n))
    spare = draw(st.lists(st.sampled_from([0, 0, 1, 7]), min_size=n, max_size=n))
    shared = draw(st.booleans())
    runs = None
    if shared:
        runs = []
        for i, prompt in enumerate(prompts):
            head = min(draw(st.sampled_from([16, 40, 64])), prompt)
            family = draw(st.integers(1, 2))
            runs.append([r for r in ((family, head), (100 + i, prompt - head)) if r[1]])
            if i and draw(st.integers(0, 4)) == 0:  # a later turn: an earlier prompt, its answer, and more
                j = draw(st.integers(0, i - 1))
                said = draw(st.integers(1, outputs[j]))
                runs[i] = [*runs[j], (-j - 1, said), (100 + i, 1 + prompt % 9)]
                prompts[i] = sum(length for _, length in runs[i])
    trace = toy_trace(
        np.cumsum(gaps).tolist(),
        prompts,
        outputs,
        caps=[o + s for o, s in zip(outputs, spare, strict=True)],
        priorities=draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        runs=runs,
    )
    depth = draw(st.sampled_from([1, 2, 2, 3]))
    max_model_len = draw(st.sampled_from([1 << 20, 120]))
    params = {
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 20])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 1, 3])),
        "num_lookahead_tokens": draw(st.sampled_from([0, 0, 0, 0, 5])),
    }
    return World(
        trace,
        kv=draw(st.sampled_from(ALLOCATORS + SHARING * (1 + 3 * shared) + ALL_AT_ONCE * (max_model_len == 120))),
        num_blocks=draw(st.sampled_from([13, 18, 30, 400])),
        scheduler_params=params,
        max_num_seqs=draw(st.sampled_from([1, 3, 16])),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 512])),
        max_model_len=max_model_len,
        depth=depth,
        asynchronous=depth > 1 and draw(st.booleans()),
        replicas=draw(st.sampled_from([1, 1, 2, 3])),
        router=draw(st.sampled_from(["round-robin", "least-outstanding"])),
        cost=ToyCost(
            fixed=draw(st.sampled_from([1, 1000, 20_000])),
            token=draw(st.sampled_from([0, 100])),
            context=draw(st.sampled_from([0, 1, 13])),
            overlapped=draw(st.sampled_from([0, 0, 700])),
            exposed=draw(st.sampled_from([0, 0, 51])),
            asynchronous=draw(st.booleans()),
        ),
    )


@st.composite
def social_worlds(draw: st.DrawFn) -> World:
    """The same, with requests that wait for others, clients that give up and try again, and limits on both sides."""
    world = draw(worlds())
    n = len(world.trace)
    delays = st.sampled_from([0, 0, 1, 900, 40_000])
    edges: list[list[tuple[int, int, int, int]]] = [[] for _ in range(n)]
    for row in range(1, n):
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
            edges[row].append((draw(st.integers(0, row - 1)), draw(st.integers(0, 1)), draw(delays), 0))
    patience = st.sampled_from([-1, -1, -1, 1, 700, 5_000, 12_345, 60_000])
    cancel = np.array(draw(st.lists(patience, min_size=n, max_size=n)), dtype=np.int64)
    limit = st.sampled_from([None, None, 1, 2, 5])
    timeout = st.sampled_from([None, None, None, 3_000, 25_000, 100_000])
    most = draw(limit)
    return replace(
        world,
        trace=replace(world.trace, after=After.of(edges) if draw(st.booleans()) else None, cancel_ns=cancel),
        clients=Clients(
            max_concurrency=most,
            batch=most is not None and draw(st.booleans()),
            max_sessions=draw(limit),
            timeout_ns=draw(timeout),
            ttft_timeout_ns=draw(timeout),
            retries=draw(st.sampled_from([0, 0, 1, 3])),
            retry_ns=draw(st.sampled_from([0, 50, 7_000])),
        ),
        max_queued=draw(st.sampled_from([None, None, None, 0, 1, 4])),
    )


@st.composite
def transformers_worlds(draw: st.DrawFn) -> World:
    """Those worlds under the rules of transformers' continuous batching."""
    params = {
        "scheduler_type": draw(st.sampled_from(["fifo", "fifo", "prefill_first"])),
        "safety_margin": draw(st.sampled_from([None, 0.0, 0.4])),
    }
    return replace(draw(worlds()), scheduler="transformers", scheduler_params=params, asynchronous=False)
