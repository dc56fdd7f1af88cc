"""Random small worlds: bursts and lulls, tight and ample memory, one to three steps in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from servesim.contracts import check_samples, schedulers
from servesim.errors import UserError
from servesim.workload.trace import After, Samples
from servesim.workload.workload import Clients
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
    "prefix-radix:eviction_policy=slru",
    "prefix-radix:eviction_policy=tlru,tlru_threshold=30,tlru_next_prompt_estimate=10",
]
GROUPED = [
    "hybrid",
    "hybrid:prefix_cache_retention_interval=dense",
    "hybrid:prefix_cache_retention_interval=32,free_order=back",
    "hybrid-paged",
]
WINDOWS = st.sampled_from(
    [(None, 40), (None, 20, 20), (33,), (None, 16, 50), (None, 32), (None, 16, 48), (None, 2, 2, 2), (None, 2), (2,)]
)
"""Of whole blocks and not; of one size and of several."""
ALL_AT_ONCE = ["contiguous", "contiguous:fit=first"]
"""These reserve max_model_len, which must fit."""

PARAMS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "vllm": {
        "policy": st.sampled_from(["fcfs", "priority"]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 20]),
        "scheduler_reserve_full_isl": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.0, 0.1]),
        "prefill_schedule_interval": st.sampled_from([1, 1, 1, 3]),
        "num_lookahead_tokens": st.sampled_from([0, 0, 0, 0, 5]),
    },
    "selective": {
        "n_slots": st.sampled_from([None, 200]),
        "max_num_tokens": st.sampled_from([1 << 30, 40]),  # as good as None, with which prompts cannot be split
        "enable_chunked_context": st.booleans(),
    },
    "continuous": {
        "watermark": st.sampled_from([0.01, 0.1]),
        "preemption_mode": st.sampled_from(["recompute", "swap"]),
        "reserve_output": st.sampled_from([False, False, True]),
    },
    "sarathi": {
        "chunk_size": st.sampled_from([16, 64]),
        "watermark": st.sampled_from([0.01, 0.1]),
        "enable_dynamic_chunking_schedule": st.sampled_from([False, False, True]),
        "chunk_schedule_max_tokens": st.just(100),
        "chunk_schedule_stages": st.sampled_from([1, 3]),
    },
    "sglang": {
        "chunked_prefill_size": st.sampled_from([-1, 16, 50]),
        "max_prefill_tokens": st.sampled_from([40, 16384]),
        "schedule_policy": st.sampled_from(["fcfs", "lpm", "dfs-weight", "lof", "random", "hrrn"]),
        "schedule_conservativeness": st.sampled_from([0.1, 1.0]),
        "enable_mixed_chunk": st.booleans(),
        "prefill_max_requests": st.sampled_from([None, None, 2]),
        "prefill_decode_interval": st.sampled_from([0, 0, 2]),
        "scheduler_recv_interval": st.sampled_from([1, 1, 3, 30]),
        "retraction_policy": st.sampled_from(["length", "priority"]),
        "enable_priority_scheduling": st.booleans(),
        "priority_scheduling_preemption_threshold": st.sampled_from([0, 10]),
        "ignore_eos": st.booleans(),
    },
    "transformers": {
        "scheduler_type": st.sampled_from(["fifo", "fifo", "prefill_first"]),
        "safety_margin": st.sampled_from([None, 0.0, 0.4]),
    },
}
"""Parameters worth varying, by scheduler."""
SPECULATION = (
    *("",) * 4, "eagle3:k=3", "eagle:k=1", "ngram:k=4", "draft-model:k=2,model=llama-3.2-1b", "medusa:k=2,width=2",
    "early-exit:k=2", "eagle:k=2,scorer=batch-expansion", "eagle3:k=4,adapt=goodput", "eagle3:k=4,adapt=oracle",
    "eagle:k=7,adapt=sglang",
    "eagle3:k=3,adapt=table,table=1-2:3/3-5:1/6-9:0",
)  # fmt: skip
STEADY = (
    "eagle3:k=3", "eagle:k=1", "draft-model:k=2,model=llama-3.2-1b", "medusa:k=2,width=2", "early-exit:k=2",
    "ngram:k=4", "eagle3:k=3,adapt=table,table=1-2:3/3-5:1/6-9:0",
)  # fmt: skip
"""As many drafts in every step of the same requests."""
ACCEPTANCE = (
    "independent:alpha=0.7", "independent:alpha=1", "independent:alpha=0", "copy:", "positions:marginal=0.8/0.4/0.3",
    "mixture:alphas=0.2/0.9", "synthetic:length=2.6", "positions:marginal=0.8/0.4/0.3,spread=0.1",
)  # fmt: skip


@st.composite
def worlds(
    draw: st.DrawFn, scheduler: str = "vllm", kv: str | None = None, samples: bool = False, alike: bool = False
) -> World:
    """`samples`: some requests ask for several (n > 1), where that can be. `alike`: prompts surely share prefixes."""
    n = draw(st.integers(1, 24))
    rate = draw(st.sampled_from([0, 500, 5_000, 50_000]))
    gaps = draw(st.lists(st.integers(0, 2 * rate), min_size=n, max_size=n))
    prompts = draw(st.lists(st.one_of(st.integers(1, 20), st.integers(50, 90)), min_size=n, max_size=n))
    outputs = draw(st.lists(st.one_of(st.integers(1, 6), st.integers(1, 80)), min_size=n, max_size=n))
    spare = draw(st.lists(st.sampled_from([0, 0, 1, 7]), min_size=n, max_size=n))
    shared = alike or draw(st.booleans())
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
    longest = max(map(sum, zip(prompts, outputs, spare, strict=True)))
    max_model_len = draw(st.sampled_from([1 << 20, 120, longest]))
    params = {name: draw(values) for name, values in PARAMS.get(scheduler, {}).items()}
    allocators = ALLOCATORS + (SHARING + GROUPED) * (1 + 3 * shared) + ALL_AT_ONCE * (max_model_len == 120)
    supports = schedulers.resolve(scheduler)[0].supports
    speculation = draw(st.sampled_from(SPECULATION)) if "speculation" in supports else ""
    world = World(
        trace,
        speculation=speculation,
        acceptance=draw(st.sampled_from(ACCEPTANCE)),
        kv=kv or draw(st.sampled_from(allocators)),
        windows=draw(WINDOWS),
        num_blocks=draw(st.sampled_from([13, 18, 30, 400])),
        host_blocks=draw(st.sampled_from([0, 4, 1000])),
        scheduler=scheduler,
        scheduler_params=params,
        max_num_seqs=draw(st.sampled_from([1, 3, 16])),
        max_num_batched_tokens=draw(st.sampled_from([200, 512] if scheduler == "continuous" else [16, 64, 512])),
        max_model_len=max_model_len,
        depth=depth,
        asynchronous=draw(st.booleans())
        and 1 < depth <= (2 if speculation else 3)  # with drafts, stages are planned synchronously
        and not speculation.startswith("ngram")
        and "async" in supports,
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
    if speculation or params.get(
        "num_lookahead_tokens"
    ):  # as at vLLM's start-up: slots for drafts end where memory does
        most = (world.num_blocks - 1) // len(world.windows) * world.block_size
        world = replace(world, max_model_len=min(max_model_len, most))
    return draw(_several(world)) if samples and draw(st.integers(0, 2)) == 0 else world


@st.composite
def _several(draw: st.DrawFn, world: World) -> World:
    """The world with requests of several samples, where its policies can serve them."""
    core, trace = world.core(), world.trace
    try:
        check_samples(core.scheduler, core.kv)
    except UserError:
        return world
    rows = st.lists(st.floats(0, 1), max_size=draw(st.sampled_from([1, 4])))  # shares of the cap
    further = draw(st.lists(rows, min_size=len(trace), max_size=len(trace)))
    lengths = [max(round(u * cap), 1) for row, cap in zip(further, trace.max_tokens.tolist(), strict=True) for u in row]
    counts = np.array([len(row) for row in further])
    return replace(world, trace=replace(trace, samples=Samples.of(counts, np.array(lengths, dtype=np.int64))))


@st.composite
def groups_of_samples(draw: st.DrawFn) -> World:
    """A few requests of several samples each, forked after their prompts, in memory that is short now and then."""
    n = draw(st.integers(1, 5))
    prompts = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    outputs = st.integers(1, 70)
    return World(
        toy_trace(
            np.cumsum(draw(st.lists(st.sampled_from([0, 900, 30_000]), min_size=n, max_size=n))).tolist(),
            prompts,
            draw(st.lists(outputs, min_size=n, max_size=n)),
            samples={row: draw(st.lists(outputs, max_size=4)) for row in range(n)},
            runs=draw(st.none() | st.just([[(7, length)] for length in prompts])),
        ),
        kv=draw(st.sampled_from(["paged", "prefix-hash", "prefix-hash:free_order=back"])),
        num_blocks=draw(st.sampled_from([15, 25, 40, 400])),
        host_blocks=draw(st.sampled_from([0, 6, 100])),
        scheduler="continuous",
        scheduler_params={"preemption_mode": draw(st.sampled_from(["recompute", "swap"]))},
        max_num_seqs=draw(st.sampled_from([4, 8, 64])),
        depth=draw(st.sampled_from([1, 1, 2])),
    )


@st.composite
def social_worlds(draw: st.DrawFn, scheduler: str = "vllm", kv: str | None = None, samples: bool = False) -> World:
    """The same, with requests that wait for others, clients that give up and try again, and limits on both sides."""
    world = draw(worlds(scheduler, kv, samples))
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
            turn_ns=draw(st.sampled_from([0, 0, 300, 20_000])),
            ramp_up_ns=draw(st.sampled_from([0, 0, 5_000])),
        ),
        max_queued=draw(st.sampled_from([None, None, None, 0, 1, 4])),
    )


@st.composite
def drafting_worlds(draw: st.DrawFn) -> World:
    """Either, where runs of steps verify as many drafts each: vLLM's defaults, one method."""
    world = draw(st.one_of(worlds(), social_worlds()))
    most = (world.num_blocks - 1) // len(world.windows) * world.block_size
    speculation = draw(st.sampled_from(STEADY))
    return replace(
        world,
        scheduler_params={"scheduler_reserve_full_isl": draw(st.booleans())},
        speculation=speculation,
        max_num_batched_tokens=draw(st.sampled_from([world.max_num_batched_tokens, 16])),
        acceptance=draw(st.sampled_from([model for model in ACCEPTANCE if model != "copy:"])),
        kv=draw(st.sampled_from(["paged", "paged", "prefix-hash", "prefix-radix:page_size=4", *GROUPED])),
        max_model_len=min(world.max_model_len, most),
        depth=min(world.depth, 2),
        asynchronous=world.depth > 1 and not speculation.startswith("ngram"),
    )


@st.composite
def lockstep_worlds(draw: st.DrawFn) -> World:
    """Either, where requests are counted together: vLLM's defaults on memory in blocks."""
    world = draw(st.one_of(worlds(samples=True), social_worlds(samples=True)))
    return replace(
        world,
        scheduler_params={"scheduler_reserve_full_isl": draw(st.booleans())},
        speculation="",
        max_num_batched_tokens=draw(st.sampled_from([world.max_num_batched_tokens, 5])),
        kv=draw(st.sampled_from(["paged", "prefix-hash", "prefix-hash:free_order=back", *GROUPED])),
        asynchronous=world.depth > 1,
    )
